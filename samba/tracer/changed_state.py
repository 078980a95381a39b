"""What ``forward`` changes beside buffers: a graph has it as it was, torch as it is.

A model is left as it was: compiling and loading call ``forward`` no time, as far as it can tell.
What functions find outside of it, in global variables and closures, is as after one call: scripts
look there for what a trace has seen.
"""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samba.tracer.containers import Change
from samba.tracer.errors import TraceError
from samba.tracer.observed import asked
from samba.tracer.snapshot import Snapshot
from samba.tracer.torch_internals import gradient_hooks, hook_tables_of
from samba.tracer.user_code import is_user_file


class ChangedAttributes(TraceError):
    """``forward`` changes what is not a buffer, and computes something else after it, or may.

    Attributes:
        names: What it changes, as paths from the model on.
    """

    deviation = "frozen-attribute"

    def __init__(
        self,
        model: torch.nn.Module,
        changes: list[Change],
        reason: str,
        what: str = "then computes something else",
    ) -> None:
        self.names = tuple(change.path for change in changes)
        is_held = any(change.held for change in changes)
        lines = [f"  {c.path}: {c.before} -> {c.after}{_line(model, c)}" for c in changes]
        super().__init__(
            where=f"model {type(model).__name__}",
            reason=f"forward() changes values that are constants of a compiled graph, and {what}:\n"
            + "\n".join([*lines, *([_WHY_HELD] if is_held else []), reason]).rstrip(),
            hint=_HINT_FOR_HELD
            if is_held
            else _HINT
            if any(change.attribute for change in changes)
            else _HINT_FOR_HOOKS,
        )


_HINT = (
    "Make it a buffer (self.register_buffer(name, torch.tensor(...))) and change that, or pass it "
    "to forward() as an input."
)
_WHY_HELD = (
    "A program has the parameters and buffers that the model had when it was compiled, each of one "
    "shape and type, and with memory of its own."
)
_HINT_FOR_HELD = (
    "Register a buffer before the model is compiled, with the shape and type that it keeps "
    "(self.register_buffer(name, torch.zeros(...))), and assign a tensor of its own (t.clone()). "
    "Exchange parameters outside of forward(). A table that the first call makes can be a plain "
    "attribute."
)
_HINT_FOR_HOOKS = "Register and remove hooks outside of forward(), before the model is compiled."


def _line(model: torch.nn.Module, change: Change) -> str:
    """The line of a change: in the code that owns the name, else in that of the modules."""
    if not change.attribute:
        return ""
    owners = dict.fromkeys([change.owner, *map(type, model.modules())])
    lines = (assigned_line(owner, change.attribute) for owner in owners)
    line = next(filter(None, lines), "")
    return f"  at {line}" if line else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedHook:
    """A hook that was registered or removed, or a note on how it is called.

    Args:
        table: The table of its module.
        key: Its key there.
        hook: What the table has of it; None if it was removed.
    """

    table: dict[int, Any]
    key: int
    hook: Any

    def repeat(self) -> None:
        """Register it, or remove it, once more."""
        if self.hook is None:
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = self.hook


class HookSnapshot:
    """The hooks of a model's modules, as they are when this is made.

    Hooks that ``forward`` registers and removes are part of the next call, as attributes are:
    transformers registers its hooks in the first call that needs them, for example. A hook counts
    as the same under the same key: it may be exchanged for one that watches it.

    Args:
        model: The model.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Tanh())
        >>> before = HookSnapshot(model)
        >>> _ = model[0].register_forward_hook(print)
        >>> [(change.path, change.before, change.after) for change in before.changes()]
        [('0.forward hooks', '0', '1')]
        >>> before.put_back()
        >>> before.changes()
        []
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._kind = type(model)
        self._tables = [
            (f"{path}." * bool(path) + kind, table, dict(table))
            for path, module in model.named_modules()
            for kind, table in hook_tables_of(module).items()
        ]

    def changes(self) -> list[Change]:
        """The tables in which hooks were registered or removed since, with how many there are."""
        return [
            Change(
                path=path, owner=self._kind, attribute="", before=f"{len(old)}", after=f"{len(now)}"
            )
            for path, now, old in self._tables
            if old.keys() != now.keys()
        ]

    def moved(self) -> list[MovedHook]:
        """What was registered and removed since, for another call to begin there."""
        return [
            MovedHook(table=now, key=key, hook=now.get(key))
            for _, now, old in self._tables
            for key in dict.fromkeys((*old, *now))
            if (key in old) != (key in now)
        ]

    def put_back(self) -> None:
        """Remove what was registered since, and register what was removed, in its old place."""
        for _, now, old in self._tables:
            if old.keys() != now.keys():
                entries = {key: now.get(key, hook) for key, hook in old.items()}
                now.clear()
                now.update(entries)


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
        drawn = ["Python's random"] if self._python != later._python else []
        return drawn + ([] if same else ["numpy.random"])

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
        exchanged: What calls before have put in the place of parameters and buffers.
        draws: The generators of Python to call it with, None for the present ones.
        returns_assigned: Whether ``forward`` returns the tensors that it assigns as well.
        observes: Whether observed values are in the state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        start: Snapshot | None = None,
        moved: Sequence[MovedHook] = (),
        exchanged: Sequence[tuple[Any, Any]] = (),
        draws: Generators | None = None,
        *,
        returns_assigned: bool = False,
        observes: bool = False,
    ) -> None:
        self._model, self._start, self._draws = model, start, draws
        self.moved_before, self.exchanged_before = tuple(moved), tuple(exchanged)
        self._returns_assigned, self._observes = returns_assigned, observes
        self._is_later = start is not None or returns_assigned
        # While it is traced, a model has parameters without hooks.
        self._hooks = [h for p in model.parameters() for h in gradient_hooks(p).values()]
        self._outer, self._outer_hooks = self._snapshot(), HookSnapshot(model)
        self.before: Snapshot | None = None
        self.after: Snapshot | None = None
        self.made: list[torch.Tensor] = []
        """Tensors that ``forward`` has made and left in the state, before backward passes."""
        self.late: set[str] = set()
        """Paths of what only backward passes have changed."""
        self.moved: Sequence[MovedHook] = ()
        """Hooks that ``forward`` registered and removed."""
        self._hook_changes: list[Change] = []
        self.exchanged: Sequence[tuple[Any, Any]] = ()
        """Parameters and buffers that ``forward`` has put others in the place of, which a program
        cannot write, with what the next call finds there."""
        self.draws: Generators | None = None
        self.drew = ""
        """Which generators of Python drew numbers in ``forward``."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While active, each call of the model begins in the same state."""
        hooks = self._outer_hooks
        draws = Generators()

        def enter(module: torch.nn.Module, args: Any) -> None:
            nonlocal hooks, draws
            if self._draws is not None:
                self._draws.put_back()
            self.before, draws, hooks = self._snapshot(), Generators(), HookSnapshot(module)

        def leave(module: torch.nn.Module, args: Any, result: Any) -> Any:
            assert self.before is not None
            self.after = self._snapshot()
            self.made = self.assigned()
            self.moved, self._hook_changes = hooks.moved(), hooks.changes()
            hooks.put_back()
            self.before.put_back(outside=self._is_later)
            self.draws = Generators()
            self.drew = " and ".join(draws.changed(self.draws))
            if self._observes:
                result = asked(result)
            return (result, self.made) if self._returns_assigned else result

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
        """While active, the state is that which ``forward`` has left, as for its gradients.

        Backward passes are a part of the call: what they change is there in the next one.
        """
        if self.before is None or self.after is None:
            yield
            return
        self.after.put_back(outside=self._is_later)
        try:
            yield
            early, self.after = self.after, self._snapshot()
            late = {change.path for change in early.changes(self.after)}
            self.late = late.difference(c.path for c in self.before.changes(early))
        finally:
            self.before.put_back(outside=self._is_later)

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._model, self._hooks)

    def assigned(self) -> list[torch.Tensor]:
        """Tensors that a call has made and left in the state."""
        if self.before is None or self.after is None:
            return []
        return [t for key, t in self.after.tensors.items() if key not in self.before.tensors]

    def generators(self) -> list[torch.Generator]:
        """Torch's generators that the model has."""
        return self._outer.values_of(torch.Generator)

    def iterators(self) -> list[str]:
        """Paths of what gives another value at each call, and cannot go back."""
        return self._outer.iterators()

    def next_start(self) -> Snapshot | None:
        """The state that the next call finds, if it is only another in plain values of the model.

        It is None if ``forward`` has registered hooks, has drawn from a generator, has left tensors
        in the state, or has changed something outside of the model.
        """
        if self.before is None or self.after is None or self.moved or self.drew or self.assigned():
            return None
        if self._hook_changes or self.before.changes(self.after, only_outside=True):
            return None
        return self.after

    def changes(self) -> list[Change]:
        """What ``forward`` has changed."""
        if self.before is None or self.after is None:
            return []
        exchanged = [entry.change() for entry, _ in self.exchanged]
        return [*self.before.changes(self.after), *self._hook_changes, *exchanged]


class DrawnNumbers(TraceError):
    """``forward`` computes with numbers that Python or NumPy draws, which a graph would keep."""

    deviation = "drawn-number"

    def __init__(self, model: torch.nn.Module, generators: str, difference: str) -> None:
        super().__init__(
            where=f"model {type(model).__name__}",
            reason=f"forward() draws from {generators}, and each draw gives a different graph:\n"
            + difference,
            hint="Draw with torch (torch.rand, dropout), which the device does in each run, or "
            "pass the numbers to forward() as an input.",
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
        owner = dict(model.named_modules()).get(path)
        # Torch has names of its own for tensors that modules do not have as attributes.
        is_named = hasattr(owner, attribute)
        owners = [type(owner)] if is_named else []
        lines = (assigned_line(owner, attribute) for owner in owners)
        super().__init__(
            where=next(filter(None, lines), f"model {type(model).__name__}"),
            reason=f"forward() writes into {name}, a tensor that is a plain attribute and thus a "
            "constant of the graph"
            if is_named
            else "forward() writes into a tensor that is neither a parameter nor a buffer, and "
            "thus a constant of the graph",
            hint="Register it as a buffer: "
            f"self.register_buffer({attribute if is_named else 'name'!r}, ..., persistent=False).",
        )


def assigned_line(owner: type | Callable[..., Any], name: str) -> str:
    """Where an attribute or a variable is changed outside of ``__init__``, as ``file:line``.

    The source of the class that has the attribute, or of the function that uses the variable, says
    where it is assigned, else where it is used. The text is empty where no source says so.
    """
    used = ""
    for part in owner.__mro__ if isinstance(owner, type) else (owner,):
        try:
            lines, start = inspect.getsourcelines(part)
            file = inspect.getsourcefile(part)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        if not is_user_file(file or ""):
            continue  # torch's own modules have names of their own
        for node in _outside_of_init(tree):
            assigns = _assigns(node, name)
            if assigns is None:
                continue
            where = f"{file}:{start + node.lineno - 1}"  # pyright: ignore[reportAttributeAccessIssue]  # statements have lines
            if assigns:
                return where
            used = used or where
    return used


def _outside_of_init(tree: ast.AST, *, inside: bool = False) -> Iterator[ast.AST]:
    """Statements and expressions of functions, except those of ``__init__``."""
    for node in ast.iter_child_nodes(tree):
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if function and getattr(node, "name", "") == "__init__":
            continue
        if inside:
            yield node
        yield from _outside_of_init(node, inside=inside or function)


def _assigns(node: ast.AST, name: str) -> bool | None:
    """True if a statement assigns the name, False if it calls something on it; else None."""
    match node:
        case ast.Assign(targets=targets):
            return True if any(_base(target) == name for target in targets) else None
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return True if _base(target) == name else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value))):
            return False if _base(value) == name else None
        case ast.Call(args=[first, *_], func=ast.Name(id="next")):
            return None if _base(first) != name else False
        case _:
            return None


def _base(target: ast.AST) -> str:
    """The attribute or variable that a target is of: ``a`` of ``self.a[0]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""
