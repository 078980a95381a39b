"""The graphs of one PEF: traces from which they are cut, and rules that they keep together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pef_schema.errors import SambaError
from pef_schema.printable import some_of
from pef_schema.program import DType, Node, Ref, Role, Value
from samba.sambatensor import SambaTensor
from samba.support.deviations import Deviations
from samba.tracer.inputs import NamedInput, TraceInputs
from samba.tracer.traced import FROM_DTYPE, Source, Traced, TracedOutput

Key = tuple[int, int]
"""A value of a trace: number of the trace, and of the value in it."""


class TiedWeights(SambaError):
    """A module that is to be one of several graphs has one parameter in two places.

    Attributes:
        model: Name of the module.
        tied: The places of each such parameter.
    """

    deviation = "tied-weights"

    def __init__(self, *, model: str, tied: Sequence[Sequence[str]]) -> None:
        self.model, self.tied = model, tuple(map(tuple, tied))
        places = "; ".join(" and ".join(paths) for paths in tied)
        super().__init__(
            f"trace_multigraph, model {model}: found tied weights: {places}. Several graphs need a "
            "parameter for each place: give each its own copy of the values (in Hugging Face "
            "configurations tie_word_embeddings=False)."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTrace:
    """The trace of one module by ``trace_multigraph``.

    Args:
        model: The module.
        traced: Its graph.
        given: What it was traced with.
        outputs: Handles of its results.
        mapping: Wished mapping, empty for none.
        prefix: Put before the names of its operations.
    """

    model: torch.nn.Module
    traced: Traced
    given: TraceInputs
    outputs: tuple[SambaTensor, ...]
    mapping: str = ""
    prefix: str = ""


def refuse_tied(model: torch.nn.Module) -> None:
    """Raise ``TiedWeights`` if a parameter is in two places of a model."""
    places: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(path)
    tied = [paths for paths in places.values() if len(paths) > 1]
    if tied:
        raise TiedWeights(model=type(model).__name__, tied=tied)


def handle(traced: Traced, value: int, name: str) -> SambaTensor:
    """An empty tensor that stands for a value of a graph."""
    described = traced.values[value]
    return SambaTensor(shape=described.shape, dtype=FROM_DTYPE[described.dtype], name=name)


class Traces:
    """The traces of a session, and which tensors stand for which of their values."""

    def __init__(self) -> None:
        self.traces: list[GraphTrace] = []
        self._made: dict[int, Key] = {}
        self._given: dict[int, list[Key]] = {}
        self._handles: dict[str, SambaTensor] = {}
        self._producers: list[dict[int, int]] = []
        self._sources: list[dict[int, Source]] = []

    def add(self, trace: GraphTrace) -> None:
        """Add a trace."""
        number = len(self.traces)
        self.traces.append(trace)
        traced = trace.traced
        for output, tensor in zip(traced.outputs, trace.outputs, strict=True):
            self._made[id(tensor)] = (number, output.value)
            self._handles[tensor.sn_name] = tensor
        for source in traced.sources:
            if source.role is Role.INPUT:
                self._given.setdefault(id(source.tensor), []).append((number, source.value))
        self._sources.append({s.value: s for s in traced.sources})
        self._producers.append(
            {v: i for i, node in enumerate(traced.nodes) for v in node.outputs if v >= 0}
        )

    def inner(self, name: str) -> SambaTensor | None:
        """The handle of any result of a node by its name, such as one inside a module."""
        if name in self._handles:
            return self._handles[name]
        for number, trace in enumerate(self.traces):
            for value in self._producers[number]:
                if trace.traced.values[value].name == name:
                    tensor = handle(trace.traced, value, name)
                    self._handles[name] = tensor
                    self._made[id(tensor)] = (number, value)
                    return tensor
        return None

    def made(self, tensor: torch.Tensor | None) -> Key | None:
        """The value that a handle stands for."""
        return self._made.get(id(tensor))

    def producer(self, key: Key) -> int:
        """The node that makes a value, -1 for none."""
        return self._producers[key[0]].get(key[1], -1)

    def stop(self, tensor: torch.Tensor) -> Key | None:
        """The value that a graph computes where this tensor is a result of it."""
        key = self.made(tensor)
        if key is None:
            key = self.made(self._handles.get(getattr(tensor, "sn_name", "")))
        return key

    def start(self, tensor: torch.Tensor) -> list[Key]:
        """The values that are known where this tensor is given to a graph."""
        key = self.made(tensor)
        keys = [*self._given.get(id(tensor), ()), *([key] if key else [])]
        return keys or self._named(getattr(tensor, "sn_name", ""))

    def _named(self, name: str) -> list[Key]:
        """Values of the one traced tensor that has a name; none if several have it."""
        handle_ = self._handles.get(name)
        key = self.made(handle_)
        sources = [
            (number, source)
            for number, trace in enumerate(self.traces)
            for source in trace.traced.sources
            if source.role is Role.INPUT and source.name == name
        ]
        tensors = {id(source.tensor) for _, source in sources} | ({id(handle_)} if key else set())
        if len(tensors) != 1:
            return []
        return [(number, source.value) for number, source in sources] + ([key] if key else [])

    def source(self, key: Key) -> Source | None:
        """Where a value comes from that no node makes."""
        return self._sources[key[0]].get(key[1])


class GraphConflict(SambaError):
    """The graphs of one PEF do not fit together.

    Attributes:
        problems: What was found, a sentence for each.
    """

    deviation = "graph-conflict"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the graphs of one PEF do not fit together:\n  " + "\n  ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """One graph to be: what a :class:`FwdGraph` covers of the traces.

    Args:
        traced: Its nodes and sources, under the names and regions that its tensors have now.
        given: Its inputs, for matching what ``run`` is given.
        outputs: Handles of its results.
    """

    traced: Traced
    given: tuple[NamedInput, ...]
    outputs: tuple[SambaTensor, ...]


def conflicts(parts: Sequence[GraphPart]) -> None:
    """Check graphs of one PEF against each other.

    Args:
        parts: The graphs.

    Raises:
        GraphConflict: Two tensors have one name or one region where they may not.
    """
    problems = [*_inputs(parts), *_outputs(parts), *_weights(parts)]
    if problems:
        raise GraphConflict(problems)


def _inputs(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[torch.Tensor, str]] = {}
    for part in parts:
        for entry in part.given:
            who = f"{entry.name} of {part.traced.name}"
            first, other = owner.setdefault(entry.region_name, (entry.tensor, who))
            if first is not entry.tensor:
                yield (
                    f"inputs {other} and {who} share region {entry.region_name}; two inputs must "
                    "not. Give one tensor object to both graphs, or give each tensor a name and a "
                    "region of its own."
                )


def _outputs(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[SambaTensor, str]] = {}
    for part in parts:
        places: dict[str, str] = {}
        for tensor in part.outputs:
            name, region = tensor.sn_name, tensor.sn_region_name
            first, other = owner.setdefault(name, (tensor, part.traced.name))
            if first is not tensor:
                yield (
                    f"graphs {other} and {part.traced.name} both have an output {name}. Give each "
                    "trace_multigraph its own trace_prefix."
                )
            if region in places:
                yield (
                    f"graph {part.traced.name} has outputs {places[region]} and {name} in one "
                    f"region, {region}; only one of them could be read."
                )
            places[region] = name


def _weights(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[torch.Tensor | None, str]] = {}
    named: set[str] = set()
    for part in parts:
        for source in part.traced.sources:
            if source.role not in (Role.WEIGHT, Role.BUFFER):
                continue
            first, other = owner.setdefault(source.name, (source.tensor, part.traced.name))
            if first is not source.tensor and part.traced.name not in named:
                named.add(part.traced.name)
                yield (
                    f"graphs {other} and {part.traced.name} have different parameters or buffers "
                    f"named {source.name}. Convert each module with its own prefix: "
                    "samba.from_torch_model_(module, parent_module_prefix=...)."
                )


_INTEGERS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64})


def in_types_of_inputs(parts: Sequence[GraphPart], deviations: Deviations) -> list[GraphPart]:
    """Graphs in which an output has the integer type of the input that shares its region.

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
    results: list[GraphPart] = []
    conversions: dict[str, None] = {}
    for part in parts:
        values, nodes = list(part.traced.values), list(part.traced.nodes)
        outputs: list[TracedOutput] = []
        for output in part.traced.outputs:
            value = values[output.value]
            dtype = types.get(output.region_name, value.dtype)
            if value.dtype is not dtype and {value.dtype, dtype} <= _INTEGERS:
                values.append(_renamed(values, value, dtype))
                nodes.append(_cast(output.value, len(values) - 1, dtype))
                output = replace(output, value=len(values) - 1)
                kinds = f"{value.dtype.name.lower()} in {dtype.name.lower()}"
                conversions[f"{output.region_name} ({kinds})"] = None
            outputs.append(output)
        traced = replace(
            part.traced, values=tuple(values), nodes=tuple(nodes), outputs=tuple(outputs)
        )
        results.append(replace(part, traced=traced))
    if conversions:
        deviations.tell(
            "cast-in-place",
            "outputs share the region of an input of another integer type: "
            f"{some_of([*conversions])}. They are converted to its type, as copy_ does: values out "
            "of its range wrap around",
        )
    return results


def _renamed(values: Sequence[Value], value: Value, dtype: DType) -> Value:
    names = {other.name for other in values}
    name = f"{value.name}__{dtype.name.lower()}"
    while name in names:
        name += "_"
    return Value(name=name, shape=value.shape, dtype=dtype)


def _cast(old: int, new: int, dtype: DType) -> Node:
    return Node(
        op="aten._to_copy.default",
        args=(Ref(value=old),),
        kwargs=(("dtype", dtype),),
        outputs=(new,),
    )
