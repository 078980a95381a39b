"""Changes in place that torch shows on both sides of a dropout of rate 0.

There torch returns the tensor that it was given, and elsewhere a new one. The rate of a program may
change from run to run, so its dropout always makes a new one. A change in place that would show the
difference is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch

from samba.tracer.dropout import ZERO_RATE
from samba.tracer.errors import DroppedItself
from samba.tracer.grad_mode import changes_in_place, shown_by
from samba.tracer.names import source_line

_NATIVE = torch.ops.aten.native_dropout.default
_ONES = torch.ops.aten.new_ones.default


def refuse_shared(graph: torch.fx.Graph, model: str) -> None:
    """Refuse a change of a tensor, or of what dropout made of it, after which the other is read.

    Args:
        graph: As ``torch.export.export`` gives it, all in one graph.
        model: Name of the model, for errors.

    Raises:
        DroppedItself: If there is such a change behind a dropout that is traced at rate 0.
    """
    dropped = list(_dropped_at_zero(graph))
    if not dropped:
        return
    place = {node: i for i, node in enumerate(graph.nodes)}
    last_read: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        last_read.update({_owner(source): place[node] for source in node.all_input_nodes})
    for change, changed in changes_in_place(graph):
        for given, result in dropped:
            sides = {_owner(given): result, _owner(result): given}
            other = sides.get(_owner(changed))
            if other is None or place[change] < place[result]:
                continue
            # What torch was given, a buffer or an input, outlives forward.
            owner = _owner(other)
            if owner.op == "placeholder" or last_read.get(owner, 0) > place[change]:
                where = source_line(change.meta.get("stack_trace")) or f"module {model}"
                raise DroppedItself(where=where, operation=str(change.target))


def _dropped_at_zero(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """What dropouts are given and make; those of channels multiply by what is dropped of ones."""
    for node in graph.find_nodes(op="call_function", target=_NATIVE):
        if node.args[1] != ZERO_RATE:
            continue
        given = node.args[0]
        for part in node.users:
            if part.target is not operator.getitem or part.args[1] != 0:
                continue
            if given.target is not _ONES:
                yield given, part
                continue
            for product in part.users:
                yield product.args[0], product


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a node shows."""
    while (shown := shown_by(node)) is not None:
        node = shown
    return node
