"""Torch refuses a backward pass through what has been changed in place; so does a trace.

The functional graph keeps all values and could go on where torch cannot. Whether torch can is
asked of torch itself: its engine runs over the history of what ``forward`` returned for the
exporter, on tensors without values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from samba.tracer.errors import OverwrittenValue, StateGradient
from samba.tracer.grad_mode import changes_in_place
from samba.tracer.names import node_line
from samba.tracer.torch_internals import storage_of, tree_leaves

_MODIFIED = "modified by an inplace operation"


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
    leaves, history = _history(ends)
    held = [name for name, buffer in graded.items() if buffer.grad_fn in history]
    if held:
        raise StateGradient(where=", ".join(changes), buffers=held)
    try:
        torch.autograd.grad(ends, leaves, [torch.ones_like(t) for t in ends])
    except Exception as error:
        if _MODIFIED not in str(error):
            return  # what the engine cannot do without values; the device differentiates by itself
        raise OverwrittenValue(lines=changes, reason=str(error).partition(" Hint: ")[0]) from None


def _changes(graph: torch.fx.Graph) -> tuple[str, ...]:
    """Lines that change in place what something else reads."""
    changed = list(changes_in_place(graph))
    if not changed:
        return ()
    readers = Counter(
        storage_of(value.meta["val"])
        for node in graph.nodes
        for value in node.all_input_nodes
        if isinstance(value.meta.get("val"), torch.Tensor)
    )
    lines = [
        f"{node_line(node) or 'forward()'} ({node.target})"
        for node, value in changed
        if readers[storage_of(value.meta["val"])] > 1
    ]
    return tuple(dict.fromkeys(lines))


def tensors_in(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors among what ``forward`` returned."""
    return tuple([leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)])


def _history(ends: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], set[Any]]:
    """The tensors at which the history of some tensors begins, and all of its functions."""
    leaves = {id(t): t for t in ends if t.grad_fn is None}
    seen: set[Any] = set()
    work: list[Any] = [t.grad_fn for t in ends]
    while work:
        function = work.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            leaves[id(function.variable)] = function.variable
        work += [following for following, _ in function.next_functions]
    return list(leaves.values()), seen
