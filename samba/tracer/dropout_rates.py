"""Which operations draw random numbers, and where they take a dropout rate.

A rate is an argin of the graph, so that it can change without a compile. An operation that has
one draws nothing where that is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from emulator.op_facts.table import facts_of, op_facts
from pef_schema.program import Graph, Node, Ref
from samba.tracer.dropout import ZERO_RATE
from samba.tracer.torch_internals import arguments_of

_RATE_NAMES = frozenset({"p", "dropout_p", "dropout"})
"""What the argument is called."""

_DROPOUTS = frozenset({"aten.native_dropout.default", "aten.dropout.default"})
"""Operations that do nothing but drop: their rate is an argin even if it is 0."""


def rate_position(op: str) -> int | None:
    """Which argument of an operation is its dropout rate; None if it takes none."""
    return facts_of(op).rate


def rate_argins(graph: Graph) -> tuple[bool, ...]:
    """For each operation of a graph that takes a dropout rate, whether that is an argin."""
    positions = ((node, rate_position(node.op)) for node in graph.nodes)
    return tuple(isinstance(_rate(node, p), Ref) for node, p in positions if p is not None)


def _rate(node: Node, position: int) -> Any:
    """The rate that a node was given, by position or by name; None where it was given none."""
    if position < len(node.args):
        return node.args[position]
    return next((value for name, value in node.kwargs if name in _RATE_NAMES), None)


def drawing_nodes(
    nodes: Iterable[torch.fx.Node], rates: Sequence[bool]
) -> frozenset[torch.fx.Node]:
    """Nodes of an exported graph that draw random numbers.

    Args:
        nodes: All of its nodes, in order.
        rates: See :func:`samba.tracer.capture.trace_model`.
    """
    ops = op_facts()
    found: list[torch.fx.Node] = []
    rated = 0
    for node in nodes:
        op = str(node.target)
        facts = ops.get(op) if node.op == "call_function" else None
        if facts is None or not facts.random:
            continue
        position = facts.rate
        if position is None:
            found.append(node)
            continue
        wanted = rated < len(rates) and rates[rated]
        rated += 1
        given = op in _DROPOUTS or bool(_argument(node, position, 0.0))
        if (wanted or given) and is_training(node):
            found.append(node)
    return frozenset(found)


def is_training(node: torch.fx.Node) -> bool:
    """Whether a node that takes a dropout rate is in training mode, and so uses it."""
    op = str(node.target)
    if op in _DROPOUTS:
        return _argument(node, 2, True) is not False
    if op.startswith("aten.scaled_dot_product_attention"):
        return True
    return bool(_argument(node, 6, False))


def drops_nothing(node: torch.fx.Node) -> bool:
    """Whether a node takes a dropout rate and was given 0."""
    position = rate_position(str(node.target))
    return position is not None and _argument(node, position, 0.5) in (0, ZERO_RATE)


def _argument(node: torch.fx.Node, position: int, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(arguments_of(node.target)[position].name, default)
