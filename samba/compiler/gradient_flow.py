"""The values that carry a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emulator.op_facts.facts import OpFacts
from samba.tracer.traced import Traced


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
