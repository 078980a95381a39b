"""The values that the gradient of a node reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from emulator.op_facts.facts import OpFacts
from pef_schema.program import Node, refs_of


def gradient_reads(node: Node, facts: OpFacts, has_grad: Callable[[int], bool]) -> Iterator[int]:
    """Values whose contents the gradient of ``node`` reads.

    Keyword values (a dropout's seed) always count: they decide the numbers.

    Args:
        node: The node.
        facts: Those of its op.
        has_grad: Whether a gradient flows through a value.
    """
    arguments = (*enumerate(node.args), *((-1, arg) for _, arg in node.kwargs))
    wanting = {p for p, arg in arguments if any(has_grad(v) for v in refs_of(arg))}
    for position, arg in enumerate(node.args):
        if position in facts.linear_in and wanting <= {position}:
            continue
        if facts.reads is None or position in facts.reads:
            yield from refs_of(arg)
    for _, arg in node.kwargs:
        yield from refs_of(arg)
