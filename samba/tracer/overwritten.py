"""Changes in place that a functional graph would pass over, and torch would not: they are refused.

* Torch refuses a backward pass through what has been changed in place. The functional graph keeps
  all values and could go on. Whether torch can is asked of torch itself: its engine runs over the
  history of what ``forward`` returned for the exporter, on tensors without values.
* A dropout of rate 0 returns the tensor that it was given, and at other rates a new one. The rate
  of a program may change from run to run, so its dropout always makes a new one. A change in place
  that would show the difference is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from samba.tracer.backward_passes import functions_behind
from samba.tracer.errors import DroppedItself, OverwrittenValue, StateGradient
from samba.tracer.nodes import changes_in_place, owner_of, places_of, readers_of_storages
from samba.tracer.random_draws import ZERO_RATE
from samba.tracer.torch_internals import storage_of
from samba.tracer.user_code import node_line

_MODIFIED = "modified by an inplace operation"
_NATIVE = torch.ops.aten.native_dropout.default
_ONES = torch.ops.aten.new_ones.default


def refuse_overwritten(
    program: ExportedProgram,
    returned: Sequence[torch.Tensor],
    graded: Mapping[str, torch.Tensor],
) -> None:
    """Refuse what torch refuses in ``loss.backward()``, of this step or of the next one.

    Args:
        program: As ``torch.export.export`` gives it.
        returned: What ``forward`` returned while it was traced, with its history.
        graded: Buffers that have a history after it, by name.

    Raises:
        OverwrittenValue: If a value that a gradient reads was changed in place.
        StateGradient: If a gradient passes through such a buffer.
    """
    ends = [t for t in returned if t.requires_grad and t.is_floating_point()]
    ends = [t for t in ends if t.dim() == 0] or ends
    changes = _changes(program.graph)
    if not ends or not changes:
        return
    history = set(functions_behind(ends))
    leaves = {id(t): t for t in ends if t.grad_fn is None}
    leaves |= {id(f.variable): f.variable for f in history if hasattr(f, "variable")}
    buffers = [name for name, buffer in graded.items() if buffer.grad_fn in history]
    if buffers:
        raise StateGradient(where=", ".join(changes), buffers=buffers)
    try:
        torch.autograd.grad(ends, list(leaves.values()), [torch.ones_like(t) for t in ends])
    except Exception as error:
        if _MODIFIED not in str(error):
            return  # what the engine cannot do without values; the device differentiates by itself
        raise OverwrittenValue(lines=changes, reason=str(error).partition(" Hint: ")[0]) from None


def _changes(graph: Graph) -> tuple[str, ...]:
    """Lines that change in place what something else reads."""
    changed = list(changes_in_place(graph))
    readers = readers_of_storages(graph) if changed else {}
    lines = [
        f"{node_line(node, 'forward()')} ({node.target})"
        for node, value in changed
        if readers[storage_of(value.meta["val"])] > 1
    ]
    return tuple(dict.fromkeys(lines))


# -- a dropout that returns what it was given -------------------------------------------


def refuse_shared(graph: Graph, model: str) -> None:
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
    place = places_of(graph)
    last_read: dict[Node, int] = {}
    for node in graph.nodes:
        last_read.update({owner_of(source): place[node] for source in node.all_input_nodes})
    for change, changed in changes_in_place(graph):
        for source, result in dropped:
            sides = {owner_of(source): result, owner_of(result): source}
            other = sides.get(owner_of(changed))
            if other is None or place[change] < place[result]:
                continue
            # What torch was given, a buffer or an input, outlives forward.
            owner = owner_of(other)
            if owner.op == "placeholder" or last_read.get(owner, 0) > place[change]:
                where = node_line(change, f"module {model}")
                raise DroppedItself(where=where, operation=str(change.target))


def _dropped_at_zero(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """What dropouts are given and make; those of channels multiply by what is dropped of ones."""
    for node in graph.find_nodes(op="call_function", target=_NATIVE):
        if node.args[1] != ZERO_RATE:
            continue
        source = node.args[0]
        for part in node.users:
            if part.target is not operator.getitem or part.args[1] != 0:
                continue
            if source.target is not _ONES:
                yield source, part
                continue
            for product in part.users:
                yield product.args[0], product
