"""The values that carry a gradient, and gradients that are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from emulator.op_facts.facts import OpFacts
from emulator.op_facts.table import facts_of, op_facts
from pef_schema.errors import SambaError
from pef_schema.program import Node, refs_of
from samba.tracer.errors import StateGradient
from samba.tracer.traced import Traced

__all__ = ["NoDerivative", "gradient_values", "refuse_state_gradients", "refuse_underivable"]


def gradient_values(
    traced: Traced, ops: Mapping[str, OpFacts], outputs: Sequence[int]
) -> list[bool]:
    """Mark the values a gradient flows through.

    Args:
        traced: The graph.
        ops: Facts of all ops.
        outputs: Values from which the backward pass starts.

    Returns:
        One flag per value: it depends on something that wants a gradient, and an output
        depends on it.
    """
    wants = [False] * len(traced.values)
    for source in traced.sources:
        wants[source.value] = (
            source.requires_grad and traced.values[source.value].dtype.has_gradient
        )
    for node in traced.nodes:
        if ops[node.op].differentiable and any(wants[v] for v in node.refs()):
            for v in node.outputs:
                if v >= 0 and traced.values[v].dtype.has_gradient:
                    wants[v] = True
    reached = [False] * len(traced.values)
    for v in outputs:
        reached[v] = wants[v]
    for node in reversed(traced.nodes):
        if any(v >= 0 and reached[v] for v in node.outputs):
            for v in node.refs():
                reached[v] = reached[v] or wants[v]
    return reached


class NoDerivative(SambaError):
    """A gradient flows through an operation of which torch has no derivative.

    Attributes:
        op, source, module: The node.
    """

    deviation = "no-derivative"

    def __init__(self, *, model: str, node: Node) -> None:
        self.op, self.source, self.module = node.op, node.source, node.module
        where = node.source or node.module or "an unknown line"
        super().__init__(
            f"model {model}, {where}: a gradient flows through {node.op}, of which torch has no "
            "derivative, and its backward pass raises; detach() what goes in, or what comes out"
        )


def refuse_underivable(traced: Traced, losses: Collection[int]) -> None:
    """Raise if a loss has a gradient that torch does not compute.

    Args:
        traced: The graph.
        losses: Positions of the losses among the outputs; without one, each floating output counts,
            or the scalars if there are any.

    Raises:
        NoDerivative: For the last such node, at which a backward pass arrives first.
    """
    if not any(facts_of(node.op).no_derivative for node in traced.nodes):
        return
    able = {
        op: replace(facts, differentiable=True) if facts.no_derivative else facts
        for op, facts in op_facts().items()
    }
    outputs = [traced.outputs[i].value for i in sorted(losses)] or _scalars_first(traced)
    flows = gradient_values(traced, able, outputs)
    wants = gradient_values(traced, able, range(len(traced.values)))
    for node in reversed(traced.nodes):
        if not any(v >= 0 and flows[v] for v in node.outputs):
            continue
        for place in facts_of(node.op).no_derivative:
            if place < len(node.args) and any(wants[v] for v in refs_of(node.args[place])):
                raise NoDerivative(model=traced.name, node=node)


def _scalars_first(traced: Traced) -> list[int]:
    floating = [o.value for o in traced.outputs if traced.values[o.value].dtype.is_floating]
    return [v for v in floating if traced.values[v].shape == ()] or floating


def refuse_state_gradients(traced: Traced, losses: Iterable[int]) -> None:
    """Refuse state that carries a gradient from step to step.

    Args:
        traced: A traced graph.
        losses: The values from which the backward pass starts.

    Raises:
        StateGradient: If a loss depends on a buffer that is given something with a gradient.
    """
    sources = {source.value: source for source in traced.sources}
    made = {v: node for node in traced.nodes for v in node.outputs if v >= 0}
    held = {
        old: new
        for new, old in traced.updates
        if old in sources and sources[old].path in traced.graded_state and new in made
    }
    if not held:
        return
    wanting = [
        replace(source, requires_grad=source.requires_grad or source.value in held)
        for source in traced.sources
    ]
    reached = gradient_values(replace(traced, sources=tuple(wanting)), op_facts(), list(losses))
    found = [old for old in held if reached[old]]
    if found:
        lines = dict.fromkeys(made[held[old]].source for old in found)
        raise StateGradient(
            where=", ".join(filter(None, lines)) or f"model {traced.name}",
            buffers=tuple(sources[old].path or sources[old].name for old in found),
        )
