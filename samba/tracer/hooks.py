"""Hooks while a model is traced: what they compute is in the graph, what they watch is not.

A hook runs once, on tensors without values. Of one that returns nothing, a warning says that it
does not run at every step. One that cannot be traced is left out with the same warning if it only
watches, and refused if it changes values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError
from samba.support.deviations import Deviations
from samba.tracer.errors import GradientError
from samba.tracer.running_code import described, line_of, returns_nothing
from samba.tracer.torch_internals import (
    changes_of,
    global_hooks,
    has_old_backward_hooks,
    hooks_of,
    outside_of_trace,
    tree_leaves,
    tree_map,
)
from samba.tracer.user_code import is_user_file


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
