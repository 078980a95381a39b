"""The traces of modules from which the graphs of one PEF are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pef_schema.errors import SambaError
from pef_schema.program import Role
from samba.sambatensor import SambaTensor
from samba.tracer.inputs import TraceInputs
from samba.tracer.traced import FROM_DTYPE, Source, Traced

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
    found = traced.values[value]
    return SambaTensor(shape=found.shape, dtype=FROM_DTYPE[found.dtype], name=name)


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
                    found = handle(trace.traced, value, name)
                    self._handles[name] = found
                    self._made[id(found)] = (number, value)
                    return found
        return None

    def made(self, tensor: torch.Tensor | None) -> Key | None:
        """The value that a handle stands for."""
        return self._made.get(id(tensor))

    def producer(self, key: Key) -> int:
        """The node that makes a value, -1 for none."""
        return self._producers[key[0]].get(key[1], -1)

    def stop(self, tensor: torch.Tensor) -> Key | None:
        """The value that a graph computes where this tensor is a result of it."""
        found = self.made(tensor)
        if found is None:
            found = self.made(self._handles.get(getattr(tensor, "sn_name", "")))
        return found

    def start(self, tensor: torch.Tensor) -> list[Key]:
        """The values that are known where this tensor is given to a graph."""
        made = self.made(tensor)
        found = [*self._given.get(id(tensor), ()), *([made] if made else [])]
        return found or self._named(getattr(tensor, "sn_name", ""))

    def _named(self, name: str) -> list[Key]:
        """Values of the one traced tensor that has a name; none if several have it."""
        handle_ = self._handles.get(name)
        made = self.made(handle_)
        sources = [
            (number, source)
            for number, trace in enumerate(self.traces)
            for source in trace.traced.sources
            if source.role is Role.INPUT and source.name == name
        ]
        tensors = {id(source.tensor) for _, source in sources} | ({id(handle_)} if made else set())
        if len(tensors) != 1:
            return []
        return [(number, source.value) for number, source in sources] + ([made] if made else [])

    def source(self, key: Key) -> Source | None:
        """Where a value comes from that no node makes."""
        return self._sources[key[0]].get(key[1])
