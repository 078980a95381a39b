"""The values that carry a gradient, and those that the gradient of a node reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emulator.op_facts.facts import OpFacts
from pef_schema.program import Node, refs_of
from samba.tracer.traced import Traced


def gradient_reads(node: Node, facts: OpFacts, grads: Sequence[bool]) -> Iterator[int]:
    """Values whose contents the gradient of ``node`` reads.

    Keyword values (a dropout's seed) always count: they decide the numbers.

    Args:
        node: The node.
        facts: Those of its op.
        grads: Per value, whether a gradient flows through it.
    """
    arguments = (*enumerate(node.args), *((-1, arg) for _, arg in node.kwargs))
    wanting = {p for p, arg in arguments if any(grads[v] for v in refs_of(arg))}
    for position, arg in enumerate(node.args):
        if position in facts.linear_in and wanting <= {position}:
            continue
        if facts.reads is None or position in facts.reads:
            yield from refs_of(arg)
    for _, arg in node.kwargs:
        yield from refs_of(arg)


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
        wants[source.value] = source.requires_grad and traced.values[source.value].dtype.is_floating
    for node in traced.nodes:
        if ops[node.op].differentiable and any(wants[v] for v in node.refs()):
            for v in node.outputs:
                if v >= 0 and traced.values[v].dtype.is_floating:
                    wants[v] = True
    reached = [False] * len(traced.values)
    for v in outputs:
        reached[v] = wants[v]
    for node in reversed(traced.nodes):
        if any(v >= 0 and reached[v] for v in node.outputs):
            for v in node.refs():
                reached[v] = reached[v] or wants[v]
    return reached
