"""The precision in which each operation runs, as listings of a PEF tell it."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.op_facts.names import CAST_RESULT, CASTS, NEXT_SEED
from emulator.op_facts.table import facts_of
from pef_schema.program import Node, Value, refs_of

ARITHMETIC = "samba_arithmetic"
"""Key of a program's metadata that says how values are rounded; absent for a model as written."""
AS_WRITTEN = "graphamp_preset=mp0 bf16_cast=nearest_even"
"""What the metadata of a model as written would say."""


def precisions(nodes: tuple[Node, ...], values: tuple[Value, ...]) -> Iterator[tuple[int, str]]:
    """Find the precision in which each operation of a graph runs.

    Args:
        nodes, values: Of the graph, with its rounding.

    Yields:
        Position and a text such as ``float32`` or ``bfloat16 -> float32``: what its floating
        inputs hold, and what is kept of its results. Rounding itself is left out.
    """
    rounded = {
        v: output
        for node in nodes
        if node.op == CAST_RESULT
        for v in refs_of(node.args[:1])
        for output in node.outputs[:1]
        if output >= 0
    }
    coarse = {output for node in nodes if node.op in CASTS for output in node.outputs[:1]}
    for i, node in enumerate(nodes):
        if node.op in CASTS or node.op == NEXT_SEED:
            continue
        inputs = {
            _type_name(v, values, coarse)
            for v in node.refs()
            if values[v].dtype.is_floating
            and (facts_of(node.op).rate is None or values[v].shape != ())
        }
        outputs = {_type_name(rounded.get(v, v), values, coarse) for v in node.outputs if v >= 0}
        if facts_of(node.op).keeps and inputs == {"bfloat16"}:
            coarse.update(v for v in node.outputs if v >= 0)
            outputs = inputs
        left, right = "+".join(sorted(inputs)), "+".join(sorted(outputs))
        yield i, right if left in ("", right) else f"{left} -> {right}"


def _type_name(value: int, values: tuple[Value, ...], coarse: set[int]) -> str:
    return "bfloat16" if value in coarse else values[value].dtype.name.lower()
