"""Turns of a loop that a run may leave out: they have no gradient, whatever they compute.

A graph has all turns of a loop over what was hit (``loops``), and does not keep what is written by
one that is left out. The gradient of that is 0, and it stays 0 all the way back as long as it is
multiplied by finite numbers only. So in such a turn, what is taken from data is replaced by a
number where it is multiplied, and again where an operation has no finite slope.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from contextlib import AbstractContextManager

import torch
from torch.fx import Graph, Node

from samba.support.marks import mark_of, marked
from samba.tracer.data_dependent.rowwise import A_FINITE_NUMBER, finite_slope_at
from samba.tracer.nodes import call_like, values_of
from samba.tracer.torch_internals import is_operation, packet_of
from samba.tracer.traced import carries_gradient

_TURN = "samba_turn"
"""Key under which an exported node holds the number of the turn that it is a part of."""
_HIT = "samba_hit"
"""Key under which the node that tells whether a turn takes place holds the number of the turn."""
_LINEAR = frozenset(
    {
        *("_reshape_alias", "_to_copy", "_unsafe_view", "add", "alias", "as_strided", "cat"),
        *("clone", "constant_pad_nd", "copy", "cumsum", "detach", "diagonal", "embedding"),
        *("expand", "flip", "gather", "index", "index_add", "index_copy", "index_put"),
        *("index_select", "masked_fill", "masked_select", "mean", "neg", "permute", "repeat"),
        *("reshape", "roll", "rsub", "scatter", "scatter_add", "select", "select_scatter"),
        *("slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sub"),
        *("sum", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "view", "where"),
    }
)
"""Operations whose slopes are the same numbers whatever their arguments are."""


def in_turn(number: int) -> AbstractContextManager[None]:
    """While active, what is traced is a part of a turn.

    Args:
        number: Of the turn, among all of the trace.
    """
    return marked(_TURN, number)


def tells_hit(number: int) -> AbstractContextManager[None]:
    """While active, a bool is traced that tells whether a turn takes place.

    Args:
        number: Of the turn.
    """
    return marked(_HIT, number)


def keep_slopes_finite(graph: Graph, data: Collection[object]) -> None:
    """Let the turns that are left out compute with finite numbers and slopes.

    Args:
        graph: A functional graph; rewritten in place.
        data: Names of its inputs; what else it is given (weights, constants) is taken as finite.
    """
    hits = {n: node for node in graph.nodes if (n := mark_of(node, _HIT)) is not None}
    if not hits:
        return
    finite, unsure = set[Node](), set[Node]()
    instead: dict[tuple[Node, Node, float], Node] = {}
    for node in list(graph.nodes):
        turn, linear = mark_of(node, _TURN), _is_linear(node)
        sources = [source for source in node.all_input_nodes if _has_slope(source)]
        if node.op != "call_function" or turn not in hits:
            is_linear_in_finite = not sources or (linear and finite.issuperset(sources))
            if node.name not in data and is_linear_in_finite:
                finite.add(node)
            continue
        others = [
            source
            for source in sources
            if source in unsure or (source not in finite and mark_of(source, _TURN) != turn)
        ]
        if linear:
            unsure.update([node] if others else [])
        elif _has_slope(node):
            within = finite_slope_at(node.target)
            number = A_FINITE_NUMBER if within is None else within
            for source in others if within is None else sources:
                key = hits[turn], source, number
                if key not in instead:
                    with graph.inserting_before(node):
                        instead[key] = call_like(node, torch.ops.aten.where.ScalarOther, *key)
                node.replace_input_with(source, instead[key])


def _has_slope(node: Node) -> bool:
    """Whether one of a node's results can carry a gradient."""
    return any(isinstance(v, torch.Tensor) and carries_gradient(v) for v in values_of(node))


def _is_linear(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    return is_operation(node.target) and packet_of(node.target) in _LINEAR
