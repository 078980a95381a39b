"""A trace that equals the graph of a PEF, as text: what the PEF does not hold of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pef_schema.program import Gradient, Graph, Node, Role, Value
from samba.remembering.stand_ins import digest_of
from samba.tracer.inputs import TraceInputs
from samba.tracer.layouts import Looks
from samba.tracer.traced import Source, Traced, TracedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is kept of a trace.

    Args:
        trace: Of the trace, what the graph in the PEF does not say.
        told: Names and texts of the deviations that were told while it was made.
    """

    trace: dict[str, Any]
    told: tuple[tuple[str, str], ...]

    def to_bytes(self) -> bytes:
        """The record as text."""
        fields = {"trace": self.trace, "told": self.told}
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        """Read what :meth:`to_bytes` has written.

        Raises:
            ValueError, KeyError, TypeError: If it is something else.
        """
        fields = json.loads(data)
        deviations = tuple([(str(name), str(text)) for name, text in fields["told"]])
        return Record(trace=dict(fields["trace"]), told=deviations)


def record_of(traced: Traced, graph: Graph, *, told: Iterable[tuple[str, str]]) -> Record | None:
    """What to keep of a trace.

    Args:
        traced: The trace, with the rounding of the PEF and its kept state.
        graph: The graph in the PEF.
        told: As in :class:`Record`.

    Returns:
        The record; None if the PEF numbers its values otherwise than the trace does.
    """
    if not _is_written_as(traced, graph):
        return None
    looks = traced.looks
    return Record(
        trace={
            "sources": [
                [s.value, s.role.value, s.name, s.region_name, s.path, s.requires_grad, s.default]
                for s in traced.sources
            ],
            "outputs": [[o.value, o.name, o.region_name] for o in traced.outputs],
            "updates": traced.updates,
            "structure": traced.structure,
            "graded_state": sorted(traced.graded_state),
            "looks": None if looks is None else [looks.lines, looks.offsets, sorted(looks.viewed)],
            "known": [[path, digest_of(value)] for path, value in traced.known],
            "viewed": sorted(traced.viewed),
        },
        told=tuple(told),
    )


def _is_written_as(traced: Traced, graph: Graph) -> bool:
    """Whether a graph in a PEF has the values and nodes of a trace, under the same numbers."""
    return (
        graph.name == traced.name
        and _bare(graph.values[: len(traced.values)]) == _bare(traced.values)
        and _placeless(graph.nodes) == _placeless(traced.nodes)
        and graph.inputs == traced.inputs
        and _gradients(graph.gradients) == _gradients(traced.gradients)
    )


def _bare(values: Sequence[Value]) -> list[tuple[Any, ...]]:
    return [(value.name, value.shape, value.dtype) for value in values]


def _placeless(nodes: Sequence[Node]) -> list[Node]:
    """Nodes without the lines that they come from, which other versions of a script move."""
    return [replace(node, source="") for node in nodes]


def _gradients(gradients: Sequence[Gradient]) -> list[Gradient]:
    return [replace(g, source="", nodes=tuple(_placeless(g.nodes))) for g in gradients]


def trace_of(
    record: Record, model: torch.nn.Module, given: TraceInputs, graph: Graph
) -> Traced | None:
    """The trace that a record is of.

    Args:
        record: The record.
        model: The model, whose tensors the trace refers to.
        given: The inputs.
        graph: The graph in the PEF.

    Returns:
        The trace; None if a buffer whose values are part of the graph has other values.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, StopIteration: If the record is damaged.
    """
    fields = record.trace
    known = [(path, model.get_buffer(path)) for path, _ in fields["known"]]
    if any(
        digest_of(value) != digest
        for (_, value), (_, digest) in zip(known, fields["known"], strict=True)
    ):
        return None
    tensors = iter(given.tensors)

    def source(
        value: int, role: int, name: str, region: str, path: str, grad: bool, default: float
    ) -> Source:
        bare = Source(
            value=value,
            role=Role(role),
            name=name,
            region_name=region,
            path=path,
            requires_grad=grad,
            default=default,
        )
        if bare.role is Role.INPUT:
            return replace(bare, tensor=next(tensors).tensor)
        if bare.role is Role.WEIGHT:
            return replace(bare, tensor=model.get_parameter(path))
        return replace(bare, tensor=model.get_buffer(path)) if bare.role is Role.BUFFER else bare

    looks = fields["looks"]
    traced = Traced(
        name=graph.name,
        values=tuple(
            [replace(v, region=-1, grad_region=-1, needs_grad=False) for v in graph.values]
        ),
        nodes=graph.nodes,
        inputs=graph.inputs,
        sources=tuple([source(*each) for each in fields["sources"]]),
        outputs=tuple(
            [TracedOutput(value=v, name=n, region_name=r) for v, n, r in fields["outputs"]]
        ),
        updates=tuple([(new, old) for new, old in fields["updates"]]),
        structure=fields["structure"],
        parameter_ids=frozenset([id(p) for p in model.parameters()]),
        gradients=graph.gradients,
        graded_state=frozenset(fields["graded_state"]),
        looks=None if looks is None else Looks(tuple(looks[0]), looks[1], frozenset(looks[2])),
        known=tuple([(path, value.detach().clone()) for path, value in known]),
        viewed=frozenset(fields["viewed"]),
    )
    if not _fits(traced, given, graph):
        raise ValueError("the record is of another graph")
    return traced


def _fits(traced: Traced, given: TraceInputs, graph: Graph) -> bool:
    """Whether a trace that was read refers to what the graph and the inputs have."""
    inputs = [s.value for s in traced.sources if s.role is Role.INPUT]
    return (
        inputs == list(graph.inputs)
        and len(inputs) == len(given.tensors)
        and all(0 <= s.value < len(graph.values) for s in traced.sources)
        and all(graph.values[s.value].name == s.name for s in traced.sources)
        and [(o.value, o.name) for o in traced.outputs]
        == [(o.value, o.name) for o in graph.outputs]
        and [new for new, _ in traced.updates] == [u.value for u in graph.updates]
        and {old for _, old in traced.updates} <= {s.value for s in traced.sources}
        and traced.structure in ("tensor", "tuple", "list", "dict")
    )
