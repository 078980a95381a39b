"""Hooks and backward passes that a model defines itself, run while it is traced.

* Torch's own engine runs each ``backward`` and hook in the order in which a backward pass would, on
  stand-ins for the gradients that come in. So the exported graph holds these computations too;
  :mod:`samba.tracer.gradient_parts` takes them out again.
* A hook runs once, on tensors without values: what it computes is in the graph, what it watches is
  not. Of one that returns nothing, a warning says that it does not run at every step. One that
  cannot be traced is left out with the same warning if it only watches, and refused if it changes
  values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError
from samba.support.deviations import Deviations
from samba.support.marks import marked
from samba.tracer.errors import GradientError
from samba.tracer.marker_ops import cotangent
from samba.tracer.torch_internals import (
    changes_of,
    global_hooks,
    has_old_backward_hooks,
    hooks_of,
    outside_of_trace,
    tree_leaves,
    tree_map,
)
from samba.tracer.torch_patches import grad_mode_after, with_gradients_asked
from samba.tracer.user_code import (
    SOURCE,
    called_by_user,
    calling_line,
    described,
    is_user_file,
    line_of,
    returns_nothing,
)


class WatchedHook:
    """A hook that says what of it does not reach the device.

    Args:
        hook: The hook.
        kind: What it is, for messages: ``forward hook of module layer``.
        told: Where warnings are told, each once.
        modules: Identities of the modules that it is for, if it is a hook of all modules: the
            exporter calls modules of its own.
    """

    def __init__(
        self,
        hook: Callable[..., Any],
        kind: str,
        told: Deviations,
        modules: frozenset[int] | None = None,
    ) -> None:
        self.hook, self._kind, self._deviations, self._own = hook, kind, told, modules
        self.__name__ = getattr(hook, "__name__", type(hook).__name__)  # torch's errors name it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None and id(args[0]) not in self._own:
            return None
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        before = [changes_of(t) for t in tensors]
        try:
            result = self.hook(*args, **kwargs)
        except SambaError:
            raise
        except Exception as error:
            raise_error_of_handler(error)
            changed = before != [changes_of(t) for t in tensors]
            if changed or not self._only_watches(args, kwargs):
                raise self._refused(error) from error
            result = None
        if result is None and before == [changes_of(t) for t in tensors]:
            self._deviations.tell(
                "watching-hook",
                f"the {self._kind}, {described(self.hook)}, ran once, when the model was traced: "
                "the device has what it computes with tensors, but what it prints, stores or "
                "counts does not happen at every step",
            )
        return result

    def _only_watches(self, args: Any, kwargs: Any) -> bool:
        """Whether a hook returns nothing; if its code does not say so, it runs on ones."""
        if returns_nothing(self.hook):
            return True
        with outside_of_trace():
            own_args, own_kwargs = tree_map(_ones, (args, kwargs))
            before = [changes_of(t) for t in tree_leaves((own_args, own_kwargs)) if _is_tensor(t)]
            try:
                result = self.hook(*own_args, **own_kwargs)
            except Exception as error:
                raise_error_of_handler(error)
                return False
            after = [changes_of(t) for t in tree_leaves((own_args, own_kwargs)) if _is_tensor(t)]
        return result is None and before == after

    def _refused(self, error: Exception) -> GradientError:
        text = str(error).strip().splitlines() or [""]
        return GradientError(
            where=line_of(self.hook) or "a hook",
            reason=f"the {self._kind}, {described(self.hook)}, cannot be traced: "
            f"{type(error).__name__}: {text[0]}",
            hint="A hook that changes values must be torch operations on its tensors alone, with "
            "no branch on their contents. One that returns nothing may do anything: it is left "
            "out with a warning.",
            deviation="untraced-hook",
        )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _ones(value: Any) -> Any:
    return torch.ones(tuple(value.shape), dtype=value.dtype) if _is_tensor(value) else value


@contextmanager
def watched_hooks(model: torch.nn.Module, told: Deviations) -> Iterator[None]:
    """While active, hooks of modules that a user has written say what does not reach the device.

    Args:
        model: Whose modules.
        told: Where warnings are told, each once.

    Raises:
        GradientError: A module has a hook of ``register_backward_hook`` that may return something.
    """
    places: list[tuple[str, Any, frozenset[int] | None]] = [
        (f" of module {path or 'model'}", hooks_of(m), None) for path, m in model.named_modules()
    ]
    places.append((" of all modules", global_hooks(), frozenset(map(id, model.modules()))))
    old = [None, *model.modules()]
    changed: list[tuple[dict[int, Any], int, WatchedHook]] = []
    for suffix, kinds, modules in places:
        for kind, hooks in kinds.items():
            for key, hook in list(hooks.items()):
                user = is_user_file((line_of(hook) or "<unknown>").rpartition(":")[0])
                if not user and modules is None:
                    continue
                hooks[key] = watched = WatchedHook(hook, f"{kind}{suffix}", told, modules)
                changed.append((hooks, key, watched))
    try:
        for module in old:
            if has_old_backward_hooks(module):
                _refuse_old(module, model)
        yield
    finally:
        for hooks, key, watched in changed:
            if hooks.get(key) is watched:
                hooks[key] = watched.hook


def _refuse_old(module: torch.nn.Module | None, model: torch.nn.Module) -> None:
    names = {id(m): path or "model" for path, m in model.named_modules()}
    hooks = global_hooks() if module is None else hooks_of(module)
    kind = "global full backward hook" if module is None else "full backward hook"
    listed = [h.hook if isinstance(h, WatchedHook) else h for h in hooks[kind].values()]
    raise GradientError(
        where=line_of(listed[0]) or "a hook",
        reason=f"register_backward_hook of module "
        f"{'(all)' if module is None else names[id(module)]}: "
        f"{', '.join(described(h) for h in listed)}",
        hint="Torch calls it with the gradients of the module's last operation only. Use "
        "register_full_backward_hook.",
        deviation="old-backward-hook",
    )


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
        if called_by_user():  # and not by torch, for what is called below
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
            marked(SOURCE, pending.source),
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


def changes_state(where: str, reason: str) -> GradientError:
    """What is raised where a backward pass writes what only ``forward`` can write.

    Args:
        where: The line, or the model.
        reason: What it writes.
    """
    return GradientError(
        where=where,
        reason=reason,
        hint="State can only change in forward(). Return the gradient, and keep statistics of "
        "gradients outside of the model.",
        deviation="backward-changes-state",
    )


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
