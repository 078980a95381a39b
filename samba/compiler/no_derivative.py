"""Gradients that torch refuses to compute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from emulator.op_facts.table import facts_of, op_facts
from pef_schema.errors import SambaError
from pef_schema.program import Node, refs_of
from samba.compiler.gradient_flow import gradient_values
from samba.tracer.traced import Traced

__all__ = ["NoDerivative", "refuse_underivable"]


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
