"""What Python code of a model holds beside parameters and buffers, as it is at one moment.

Held are the attributes of modules, of the objects that these hold, of the classes of both, and what
their functions read in closures and global variables; lists, dicts and sets among them entry by
entry. A state can be compared with a later one and put back, in the same containers.
"""

from __future__ import annotations

import itertools
import random
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samba.tracer.names import is_user_file
from samba.tracer.torch_internals import buffers_of, parameters_of

__all__ = ["Change", "HeldState"]

_MISSING = object()

_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has, for torch."""

_MIRRORS = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Where torch's recurrent layers list their parameters once more: put back, not reported."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

_MOST = 20_000
"""Containers that are looked into, and entries of one of them: what is beyond is not held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry that is another than before.

    Args:
        path: Where, as one would write it, from the model on: ``encoder.steps``.
        owner: The class or function whose code names it.
        attribute: The name there.
        before, after: What it was and is, for a reader.
    """

    path: str
    owner: type | Callable[..., Any]
    attribute: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """A container with its entries: all of them, or those of some names."""

    path: str
    owner: Any
    attribute: str
    container: Any
    entries: dict[Any, Any]
    partial: bool = False
    outside: bool = False


class HeldState:
    """The state of a model's Python code, as it is when this is made.

    Args:
        model: The model.

    Example:
        >>> class Counter(torch.nn.Module):
        ...     steps = 0
        >>> model = Counter()
        >>> before = HeldState(model)
        >>> model.steps = 1
        >>> [(c.path, c.before, c.after) for c in before.changes(HeldState(model))]
        [('steps', '0', '1')]
        >>> before.put_back()
        >>> model.steps
        0
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._holders: list[_Holder] = []
        self._partial: dict[int, _Holder] = {}
        self._seen: set[int] = set()
        self._code: set[int] = set()
        self.tensors: dict[int, torch.Tensor] = {}
        self._outside = False
        modules = [(f"{path}." if path else "", module) for path, module in model.named_modules()]
        for prefix, module in modules:
            self._seen.add(id(module))
            self._walk_module(prefix, module)
        for prefix, module in modules:
            self._walk_class(prefix, type(module))

    def changes(self, later: HeldState) -> list[Change]:
        """Entries that are others in a later state of the same model.

        Args:
            later: The later state.
        """
        after = {id(holder.container): holder for holder in later._holders}
        found: list[Change] = []
        for holder in self._holders:
            other = after.get(id(holder.container))
            if other is None:
                continue  # nobody holds it any more: the entry that did is another
            if isinstance(holder.container, (list, set, deque)):
                if not _same_items(holder.entries, other.entries):
                    text = f"{len(holder.entries)} entries", f"{len(other.entries)} entries"
                    found.append(_change(holder, holder.path, holder.attribute, *text))
                continue
            if isinstance(holder.container, _DRAWING):
                if repr(holder.entries) != repr(other.entries):
                    text = "a state", "another one"
                    found.append(_change(holder, holder.path, holder.attribute, *text))
                continue
            for key in dict.fromkeys((*holder.entries, *other.entries)):
                old, new = holder.entries.get(key, _MISSING), other.entries.get(key, _MISSING)
                if not _same(old, new):
                    if old is _MISSING and isinstance(holder.owner, type):
                        old = getattr(holder.owner, str(key), _MISSING)
                    path, attribute = _place(holder, key)
                    found.append(_change(holder, path, attribute, _text(old), _text(new)))
        return [change for change in found if change.attribute not in _MIRRORS]

    def put_back(self, *, outside: bool = True) -> None:
        """Give every container the entries that it had.

        Args:
            outside: Whether those too that functions find outside of the model: in global
                variables and closures.
        """
        for holder in self._holders:
            if outside or not holder.outside:
                _fill(holder)

    def with_tensors(self, replace: Callable[[torch.Tensor], torch.Tensor]) -> HeldState:
        """The same state with other tensors in it, to be put in its place.

        Args:
            replace: Gives a tensor for each that is held.
        """
        made = object.__new__(HeldState)
        made._holders = [
            _Holder(
                path=h.path,
                owner=h.owner,
                attribute=h.attribute,
                container=h.container,
                entries={key: _replaced(value, replace) for key, value in h.entries.items()},
                partial=h.partial,
                outside=h.outside,
            )
            for h in self._holders
        ]
        made._partial, made._seen, made._code, made.tensors = {}, set(), set(), {}
        return made

    # -- what is looked into ------------------------------------------------------

    def _walk_module(self, prefix: str, module: torch.nn.Module) -> None:
        apart = parameters_of(module), buffers_of(module)
        entries = {
            key: value
            for key, value in vars(module).items()
            if key not in _OWN and not any(value is holder for holder in apart)
        }
        self._hold(prefix, type(module), "", vars(module), entries, partial=True)

    def _hold(
        self,
        path: str,
        owner: Any,
        attribute: str,
        container: Any,
        entries: dict[Any, Any],
        *,
        partial: bool = False,
    ) -> None:
        if len(self._holders) >= _MOST or len(entries) > _MOST:
            return
        holder = self._partial.get(id(container)) if partial else None
        if holder is None:
            holder = _Holder(
                path=path,
                owner=owner,
                attribute=attribute,
                container=container,
                entries=entries,
                partial=partial,
                outside=self._outside,
            )
            self._holders.append(holder)
            if partial:
                self._partial[id(container)] = holder
        else:
            entries = {k: v for k, v in entries.items() if k not in holder.entries}
            holder.entries.update(entries)
        for key, value in list(entries.items()):
            self._walk(*_place(holder, key), owner, value)

    def _walk(self, path: str, attribute: str, owner: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value
            return
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if isinstance(value, torch.nn.Module):
            return  # one that is registered is walked as such, and another is not this model's
        if isinstance(value, tuple):
            for index, item in enumerate(value):
                self._walk(f"{path}[{index}]", attribute, owner, item)
            return
        self._seen.add(id(value))
        if isinstance(value, _DRAWING):
            self._hold(path, owner, attribute, value, {"state": _drawing_state(value)})
        elif isinstance(value, _CONTAINERS) and not _is_plain_container(value):
            return  # reading it may run code of its class
        elif isinstance(value, (list, deque)):
            self._hold(path, owner, attribute, value, dict(enumerate(value)))
        elif isinstance(value, set):
            self._hold(path, owner, attribute, value, {item: item for item in value})
        elif isinstance(value, dict):
            self._hold(path, owner, attribute, value, dict(value))
        elif isinstance(value, types.FunctionType):
            self._walk_function(value)
        elif isinstance(value, type):
            self._walk_class(f"{value.__name__}.", value)
        elif _of_user(type(value)) and hasattr(value, "__dict__"):
            self._hold(f"{path}.", type(value), "", vars(value), dict(vars(value)))
            self._walk_class(f"{path}.", type(value))

    def _walk_class(self, prefix: str, kind: type) -> None:
        for base in kind.__mro__:
            if id(base) in self._code or not _of_user(base):
                continue
            self._code.add(id(base))
            body = vars(base)
            entries = {
                key: value
                for key, value in body.items()
                if not key.startswith("__") and isinstance(value, (*_PLAIN, list, dict, set, deque))
            }
            self._hold(prefix, kind, "", base, entries, partial=True)
            for value in body.values():
                function = getattr(value, "__func__", value)
                function = getattr(function, "fget", function)
                if isinstance(function, types.FunctionType):
                    self._walk_function(function)

    def _walk_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if id(code) in self._code or not _is_own_file(code.co_filename):
            return
        self._code.add(id(code))
        outer, self._outside = self._outside, True
        names = [name for name in _names(code) if name in function.__globals__]
        entries = {name: function.__globals__[name] for name in names}
        self._hold("", function, "", function.__globals__, _readable(entries), partial=True)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._hold("", function, name, cell, {name: cell.cell_contents})
            except ValueError:
                continue  # an empty cell
        self._outside = outer


_DRAWING = (random.Random, np.random.Generator, np.random.RandomState, itertools.count)
"""Objects that give another value at each call."""


_CONTAINERS = (OrderedDict, dict, list, deque, set)
_READ_BY = ("__iter__", "__len__", "__getitem__", "__setitem__", "__delitem__", "keys", "items")


def _is_plain_container(value: Any) -> bool:
    """Whether a container is read and filled by the methods of Python's own."""
    kind = type(value)
    base = next(base for base in _CONTAINERS if isinstance(value, base))
    return kind is Counter or all(
        getattr(kind, name, None) is getattr(base, name, None) for name in _READ_BY
    )


def _drawing_state(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.get_state() if isinstance(value, np.random.RandomState) else repr(value)


def _set_drawing_state(value: Any, state: Any) -> None:
    """Let one go on from a state; a count cannot go back."""
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names in a function and in those defined inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _readable(entries: dict[str, Any]) -> dict[str, Any]:
    """Global variables that may be state: not modules, and nothing of the interpreter."""
    return {
        key: value
        for key, value in entries.items()
        if not key.startswith("__")
        and not isinstance(value, (types.ModuleType, types.BuiltinFunctionType))
    }


def _of_user(kind: type) -> bool:
    """Whether a class is defined in a user's file, or typed in."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "builtins":
        return False
    file = getattr(module, "__file__", None)
    return _is_own_file(file) if file else kind.__module__ == "__main__"


def _is_own_file(file: str) -> bool:
    """Whether a file is the user's own, and not of an installed package."""
    return is_user_file(file) and "site-packages" not in file and "dist-packages" not in file


def _place(holder: _Holder, key: Any) -> tuple[str, str]:
    """Path and attribute of an entry."""
    if isinstance(holder.container, types.CellType):
        return str(key), str(key)
    if isinstance(holder.container, (list, set, deque)) or holder.attribute:
        text = f"{key!r:.40}" if isinstance(key, _PLAIN) else f"a {type(key).__name__}"
        return f"{holder.path}[{text}]", holder.attribute
    return f"{holder.path}{key}", str(key)


def _change(holder: _Holder, path: str, attribute: str, before: str, after: str) -> Change:
    return Change(path=path, owner=holder.owner, attribute=attribute, before=before, after=after)


def _text(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return f"{value!r:.40}" if isinstance(value, _PLAIN) else f"a {type(value).__name__}"


def _same_items(old: dict[Any, Any], new: dict[Any, Any]) -> bool:
    return len(old) == len(new) and all(map(_same, old.values(), new.values()))


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, float):
        return repr(old) == repr(new)  # nan is itself, and -0.0 is not 0.0
    return isinstance(old, _PLAIN) and old == new


def _fill(holder: _Holder) -> None:
    container, entries = holder.container, holder.entries
    if isinstance(container, types.CellType):
        container.cell_contents = next(iter(entries.values()))
    elif isinstance(container, _DRAWING):
        _set_drawing_state(container, entries["state"])
    elif isinstance(container, type):
        for key, value in entries.items():
            if container.__dict__.get(key, _MISSING) is not value:
                setattr(container, key, value)
    elif isinstance(container, set):
        if container != set(entries):
            container.clear()
            container.update(entries)
    elif isinstance(container, (list, deque)):
        if not _identical(container, entries.values()):
            container.clear()
            container.extend(entries.values())
    else:
        _fill_mapping(container, entries, partial=holder.partial)


def _fill_mapping(container: dict[Any, Any], entries: dict[Any, Any], *, partial: bool) -> None:
    added = [key for key in container if key not in entries]
    if not partial:
        for key in added:
            del container[key]
    elif not isinstance(container.get("__builtins__"), (dict, types.ModuleType)):
        for key in added:  # of a module, whose own entries are torch's
            if key not in _OWN:
                del container[key]
    for key, value in entries.items():
        if container.get(key, _MISSING) is not value:
            container[key] = value


def _identical(old: Iterable[Any], new: Iterable[Any]) -> bool:
    first, second = list(old), list(new)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


def _replaced(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return replace(value)
    if type(value) is tuple:
        return tuple(_replaced(item, replace) for item in value)
    return value
