"""What a check of a branch looks at, so that a cut can tell to which graph the check belongs."""

from __future__ import annotations

from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema.program import Node, Ref
from samba.tracer.traced import Traced

__all__ = ["check_inputs"]


def check_inputs(traced: Traced, position: int) -> frozenset[int]:
    """The values from which a check is computed by nodes that serve checks alone.

    Args:
        traced: A trace.
        position: Of a node in it; -1 for what no node makes, such as an input.

    Returns:
        Values that a source gives, or that other nodes or results depend on, too; nothing if the
        node is no check.
    """
    if position < 0 or traced.nodes[position].op != CHECKED_BRANCH:
        return frozenset()
    own = _for_checks(traced)
    producer = {value: i for i, node in enumerate(traced.nodes) for value in node.outputs}
    pending = [_condition(traced.nodes[position])]
    found: set[int] = set()
    while pending:
        value = pending.pop()
        if producer.get(value, -1) in own:
            pending += traced.nodes[producer[value]].refs()
        else:
            found.add(value)
    return frozenset(found)


def _condition(check: Node) -> int:
    condition = check.args[1]
    assert isinstance(condition, Ref)  # as the tracer writes it
    return condition.value


def _for_checks(traced: Traced) -> set[int]:
    """Nodes of which nothing but checks depends."""
    needed = {output.value for output in traced.outputs}
    needed |= {new for new, _ in traced.updates}
    found: set[int] = set()
    for position in range(len(traced.nodes) - 1, -1, -1):
        node = traced.nodes[position]
        if node.op == CHECKED_BRANCH:
            continue
        if needed.intersection(node.outputs):
            needed.update(node.refs())
        else:
            found.add(position)
    return found
