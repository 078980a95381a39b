"""The backward passes that a model defines itself, run behind ``forward`` while it is traced.

Torch's own engine runs each ``backward`` and hook in the order in which a backward pass would, on
stand-ins for the gradients that come in. So the exported graph holds these computations too;
:mod:`samba.tracer.gradient_parts` takes them out again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.traceback import annotate, preserve_node_meta

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError
from samba.support.deviations import Deviations
from samba.tracer.errors import GradientError
from samba.tracer.hooks import WatchedHook
from samba.tracer.marker_ops import cotangent
from samba.tracer.torch_internals import tree_leaves
from samba.tracer.torch_patches import grad_mode_after, with_gradients_asked
from samba.tracer.user_code import SOURCE, calling_line


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecord:
    """Where a gradient of the model's own stands among the outputs of an exported graph.

    Args:
        index: Its number, which its marker has too.
        name: What defines it.
        source: ``file:line`` of that.
        moves: Whether the marker passes on its inputs themselves.
        around: Whether it stands between a tensor and all that use it, and not where it was put.
        gradients: For each input of the marker, the position of its gradient among the additional
            outputs; None where there is none.
    """

    index: int
    name: str
    source: str
    moves: bool
    around: bool
    gradients: tuple[int | None, ...]


@dataclass(slots=True, kw_only=True)
class Pending:
    """A gradient of the model's own whose backward pass has not been traced yet."""

    name: str
    source: str
    inputs: tuple[torch.Tensor, ...]
    leaves: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]
    marked: tuple[torch.Tensor, ...] = ()
    moves: bool = False
    around: bool = False
    hooks: OrderedDict[int, Callable[..., Any]] = field(
        default_factory=lambda: OrderedDict[int, Callable[..., Any]]()
    )


def run_backward(
    pending: Sequence[Pending],
    result: Any,
    told: Deviations,
    note_asked: Callable[[str, str], None],
) -> tuple[tuple[GradientRecord, ...], tuple[torch.Tensor, ...]]:
    """Trace all backward passes, the last first.

    Args:
        pending: Gradients of the model's own, in the order in which ``forward`` met them.
        result: What ``forward`` returned.
        told: Where warnings are told, each once.
        note_asked: Takes what asks for a gradient in its backward, and the line.

    Returns:
        Where the gradients stand, and the gradients.

    Raises:
        GradientError: A backward pass or a hook cannot be traced.
    """
    reached = _reached(result)
    records: list[GradientRecord] = []
    outputs: list[torch.Tensor] = []
    for index, each in reversed(list(enumerate(pending))):
        for hook in each.hooks.values():
            kind = each.name.partition(" at ")[0]
            each.results[0].register_hook(WatchedHook(hook, kind, told))
        ends = each.inputs if each.around else each.marked
        used = [i for i, tensor in enumerate(ends) if _key(tensor) in reached]
        if not used or (each.around and not each.hooks):
            continue
        places: list[int | None] = []
        for gradient in _gradients(index, each, used, note_asked):
            places.append(None if gradient is None else len(outputs))
            if gradient is not None:
                outputs.append(gradient)
        if each.around:
            outputs.append(each.marked[0])  # so that the marker stays in the graph
        records.append(
            GradientRecord(
                index=index,
                name=each.name,
                source=each.source,
                moves=each.moves,
                around=each.around,
                gradients=tuple(places),
            )
        )
    return tuple(records), tuple(outputs)


def _gradients(
    index: int, pending: Pending, used: Sequence[int], note_asked: Callable[[str, str], None]
) -> Sequence[torch.Tensor | None]:
    own = torch.autograd.grad

    def grad(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note_asked(f"{pending.name} calls torch.autograd.grad", calling_line())
        return function(*args, **kwargs)

    def backward(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise GradientError(
            where=calling_line(),
            reason=f"{pending.name} calls backward(), which adds to the .grad of parameters and of "
            "detached tensors: the device has only the gradients that its backward pass returns",
            hint="Leave the function out: the device decides by itself what it keeps for the "
            "backward pass, and computes the rest again. Or give the function all parameters as "
            "inputs, and return their gradients as torch operations on what it has saved.",
            deviation="untraced-backward",
        )

    try:
        incoming = [cotangent(pending.marked[i], index, i) for i in used]
        results = [pending.results[i] for i in used]
        with (
            grad_mode_after(),
            preserve_node_meta(),
            annotate({SOURCE: pending.source}),
            with_gradients_asked(grad, backward),
        ):
            return own(results, pending.leaves, incoming, allow_unused=True)
    except SambaError:
        raise
    except Exception as error:
        raise_error_of_handler(error)
        text = str(error).strip().splitlines() or [""]
        raise GradientError(
            where=pending.source,
            reason=f"{pending.name} cannot be traced: {type(error).__name__}: {text[0]}",
            hint="It must be torch operations on the gradients and on what forward saved, "
            "with no branch on the contents of a tensor.",
            deviation="untraced-backward",
        ) from error


# -- the history of tensors -------------------------------------------------------------


def tensors_in(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors among what ``forward`` returned."""
    return tuple([leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)])


def functions_behind(ends: Sequence[torch.Tensor]) -> Iterator[Any]:
    """The functions of autograd that some tensors come from, each once."""
    functions: set[Any] = set()
    work: list[Any] = [t.grad_fn for t in ends]
    while work:
        function = work.pop()
        if function is not None and function not in functions:
            functions.add(function)
            yield function
            work += [following for following, _ in function.next_functions]


def _key(tensor: torch.Tensor) -> Any:
    """Where the gradient of a tensor arrives."""
    return id(tensor) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def _reached(result: Any) -> set[Any]:
    """Where gradients arrive that start from any of the results of a model."""
    ends = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    reached = {_key(tensor) for tensor in ends}
    for function in functions_behind(ends):
        if hasattr(function, "variable"):
            reached.add(id(function.variable))
        reached.update(each for each in function.next_functions if each[0] is not None)
    return reached
