"""What ``forward`` changes beside buffers: a graph has it as it was, torch as it is.

A model is left as it was: compiling and loading call ``forward`` no time, as far as it can tell.
What functions find outside of it, in global variables and closures, is as after one call: scripts
look there for what a trace has seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from samba.tracer.assigned_line import assigned_line
from samba.tracer.errors import TraceError
from samba.tracer.held_hooks import HeldHooks, MovedHook
from samba.tracer.held_state import Change, HeldState
from samba.tracer.observed import asked

__all__ = ["ChangedAttributes", "DrawnNumbers", "MutatedConstant", "TraceState"]


class ChangedAttributes(TraceError):
    """``forward`` changes what is no buffer, and computes something else after it, or may.

    Attributes:
        names: What it changes, as paths from the model on.
    """

    deviation = "frozen-attribute"

    def __init__(
        self,
        model: torch.nn.Module,
        changes: list[Change],
        reason: str,
        what: str = "computes something else after it",
    ) -> None:
        self.names = tuple(change.path for change in changes)
        lines = [f"  {c.path}: {c.before} -> {c.after}{_line(model, c)}" for c in changes]
        super().__init__(
            where=f"model {type(model).__name__}",
            reason=f"forward() changes what a compiled graph holds as it was, and {what}:\n"
            + "\n".join(lines)
            + f"\n{reason}",
            hint=_HINT if any(change.attribute for change in changes) else _HINT_FOR_HOOKS,
        )


_HINT = (
    "Make it a buffer (self.register_buffer(name, torch.tensor(...))) and change that, or pass it "
    "to forward() as an input."
)
_HINT_FOR_HOOKS = "Register and remove hooks outside of forward(), before the model is compiled."


def _changed(model: torch.nn.Module, hooks: HeldHooks) -> list[Change]:
    """The modules that have other hooks than before."""
    return [
        Change(path=path, owner=type(model), attribute="", before=str(before), after=str(after))
        for path, before, after in hooks.counts()
    ]


def _line(model: torch.nn.Module, change: Change) -> str:
    """The line of a change: in the code that owns the name, else in that of the modules."""
    if not change.attribute:
        return ""
    owners = dict.fromkeys([change.owner, *map(type, model.modules())])
    lines = (assigned_line(owner, change.attribute) for owner in owners)
    line = next(filter(None, lines), "")
    return f"  at {line}" if line else ""


class Generators:
    """The states of the generators of Python and NumPy, as they are when this is made."""

    def __init__(self) -> None:
        self._python: Any = random.getstate()
        self._numpy: Any = np.random.get_state()

    def changed(self, later: Generators) -> list[str]:
        """Names of those that have drawn since.

        Args:
            later: Their states later on.
        """
        kind, keys, *rest = self._numpy
        other_kind, other_keys, *other_rest = later._numpy
        same = (kind, bytes(keys), rest) == (other_kind, bytes(other_keys), other_rest)
        found = ["Python's random"] if self._python != later._python else []
        return found + ([] if same else ["numpy.random"])

    def put_back(self) -> None:
        """Let the generators go on from these states."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)


class TraceState:
    """The state of a model's Python code while it is traced; puts it back whenever it may change.

    Args:
        model: The model.
        start: The state to call ``forward`` in, None for the present one.
        moved: What hooks to register and remove before.
        draws: The generators of Python to call it with, None for the present ones.
        returns_assigned: Whether ``forward`` returns the tensors that it assigns as well.
        observes: Whether observed values are in the state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        start: HeldState | None = None,
        moved: Sequence[MovedHook] = (),
        draws: Generators | None = None,
        *,
        returns_assigned: bool = False,
        observes: bool = False,
    ) -> None:
        self._model, self._start, self._draws = model, start, draws
        self.moved_before, self._outer_hooks = tuple(moved), HeldHooks(model)
        self._returns_assigned, self._observes = returns_assigned, observes
        self._is_later = start is not None or returns_assigned
        self._outer = HeldState(model)
        self.before: HeldState | None = None
        self.after: HeldState | None = None
        self.moved: Sequence[MovedHook] = ()
        """Hooks that ``forward`` registered and removed."""
        self._hooks: HeldHooks | None = None
        self._hook_changes: list[Change] = []
        self.draws: Generators | None = None
        self.drew = ""
        """Which generators of Python drew numbers in ``forward``."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """While active, each call of the model begins in the same state."""

        def enter(module: torch.nn.Module, args: Any) -> None:
            if self._draws is not None:
                self._draws.put_back()
            self.before, self.draws = HeldState(module), Generators()
            self._hooks = HeldHooks(module)

        def leave(module: torch.nn.Module, args: Any, result: Any) -> Any:
            self.after = HeldState(module)
            if self._hooks is not None:
                self.moved, self._hook_changes = self._hooks.moved(), _changed(module, self._hooks)
                self._hooks.put_back()
            if self.before is not None and self.draws is not None:
                self.before.put_back(outside=self._is_later)
                before, self.draws = self.draws, Generators()
                self.drew = " and ".join(before.changed(self.draws))
            if self._observes:
                result = asked(result)
            return (result, self.assigned()) if self._returns_assigned else result

        first = self._model.register_forward_pre_hook(enter, prepend=True)
        last = self._model.register_forward_hook(leave)
        generators = Generators()
        try:
            if self._start is not None:
                self._start.put_back()
            for hook in self.moved_before:
                hook.repeat()
            yield
        finally:
            first.remove()
            last.remove()
            if self.drew:
                generators.put_back()
            self._outer.put_back(outside=self._is_later)
            self._outer_hooks.put_back()

    @contextmanager
    def left(self) -> Iterator[None]:
        """While active, the state is that which ``forward`` has left, as for its gradients."""
        if self.before is None or self.after is None:
            yield
            return
        self.after.put_back(outside=self._is_later)
        try:
            yield
        finally:
            self.before.put_back(outside=self._is_later)

    def assigned(self) -> list[torch.Tensor]:
        """Tensors that ``forward`` has made and left in the state."""
        if self.before is None or self.after is None:
            return []
        return [t for key, t in self.after.tensors.items() if key not in self.before.tensors]

    def changes(self) -> list[Change]:
        """What ``forward`` has changed."""
        if self.before is None or self.after is None:
            return []
        return [*self.before.changes(self.after), *self._hook_changes]


class DrawnNumbers(TraceError):
    """``forward`` computes with numbers that Python or NumPy draws, which a graph would keep."""

    deviation = "drawn-number"

    def __init__(self, model: torch.nn.Module, generators: str, difference: str) -> None:
        super().__init__(
            where=f"model {type(model).__name__}",
            reason=f"forward() draws from {generators}, and each draw gives another graph:\n"
            + difference,
            hint="Draw with torch (torch.rand, dropout), which the device does in each run, or "
            "pass what is drawn to forward() as an input.",
        )


class MutatedConstant(TraceError):
    """``forward`` writes into a tensor that is a plain attribute.

    Attributes:
        name: Path of the attribute from the model on.
    """

    deviation = "mutated-constant"

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        self.name = name
        path, _, attribute = name.rpartition(".")
        owners = [type(m) for p, m in model.named_modules() if p == path]
        lines = (assigned_line(owner, attribute) for owner in owners)
        super().__init__(
            where=next(filter(None, lines), f"model {type(model).__name__}"),
            reason=f"forward() writes into {name}, a tensor that is a plain attribute: a constant "
            "of the graph",
            hint="Register it as a buffer: "
            f"self.register_buffer({attribute!r}, ..., persistent=False).",
        )
