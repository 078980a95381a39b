"""Outputs that update an input in place, of another integer type than it: converted, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pef_schema.program import DType, Node, Ref, Value
from samba.session.multigraph.conflicts import GraphPart
from samba.support.deviations import Deviations, some_of
from samba.tracer.traced import TracedOutput

_INTEGERS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64})


def in_types_of_inputs(parts: Sequence[GraphPart], deviations: Deviations) -> list[GraphPart]:
    """Graphs whose outputs have the integer type of the input in whose region they are.

    Sums of an int32 input and of a tensor that torch makes, as ``torch.full`` does, are int64. The
    region is that of the input: such an output is written there as ``copy_`` writes it.

    Args:
        parts: The graphs of one PEF.
        deviations: Where it is told.
    """
    types = {
        source.region_name: part.traced.values[source.value].dtype
        for part in parts
        for source in part.traced.sources
        if source.value in part.traced.inputs
    }
    made: list[GraphPart] = []
    changed: dict[str, None] = {}
    for part in parts:
        values, nodes = list(part.traced.values), list(part.traced.nodes)
        outputs: list[TracedOutput] = []
        for output in part.traced.outputs:
            value = values[output.value]
            wanted = types.get(output.region_name, value.dtype)
            if value.dtype is not wanted and {value.dtype, wanted} <= _INTEGERS:
                values.append(_renamed(values, value, wanted))
                nodes.append(_cast(output.value, len(values) - 1, wanted))
                output = replace(output, value=len(values) - 1)
                kinds = f"{value.dtype.name.lower()} in {wanted.name.lower()}"
                changed[f"{output.region_name} ({kinds})"] = None
            outputs.append(output)
        traced = replace(
            part.traced, values=tuple(values), nodes=tuple(nodes), outputs=tuple(outputs)
        )
        made.append(replace(part, traced=traced))
    if changed:
        deviations.tell(
            "cast-in-place",
            f"outputs have the region of an input of another integer type: {some_of([*changed])}. "
            "They are converted to that, as copy_ does, and what is beyond its range wraps around",
        )
    return made


def _renamed(values: Sequence[Value], value: Value, dtype: DType) -> Value:
    taken = {other.name for other in values}
    name = f"{value.name}__{dtype.name.lower()}"
    while name in taken:
        name += "_"
    return Value(name=name, shape=value.shape, dtype=dtype)


def _cast(old: int, new: int, dtype: DType) -> Node:
    return Node(
        op="aten._to_copy.default",
        args=(Ref(value=old),),
        kwargs=(("dtype", dtype),),
        outputs=(new,),
    )
