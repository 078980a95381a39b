"""Containers of Python code with their entries: how two differ, and how entries are put back."""

from __future__ import annotations

import itertools
import random
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from samba.tracer.held_caches import CACHED, clear_if_traced
from samba.tracer.observed import Place, concrete, is_observed

__all__ = [
    "CONTAINERS",
    "DRAWING",
    "OWN",
    "PLAIN",
    "WHOLE",
    "Change",
    "Holder",
    "defaults_of",
    "differences",
    "drawing_state",
    "entry_place",
    "fill",
    "is_plain_container",
    "place_of",
    "slots_of",
]

MISSING = object()

OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has, for torch."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry that is another than before.

    Args:
        path: Where, as one would write it, from the model on: ``encoder.steps``.
        owner: The class or function whose code names it.
        attribute: The name there.
        before, after: What it was and is, for a reader.
        places: Where it is held.
        old, new: What was there and is now: None where that is more than one value.
        draws: Whether it is a generator of random numbers that has drawn.
        caches: Whether it is a function that has kept more results.
    """

    path: str
    owner: type | Callable[..., Any]
    attribute: str
    before: str
    after: str
    places: tuple[Place, ...] = ()
    old: Any = None
    new: Any = None
    draws: bool = False
    caches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container with its entries: all of them, or those of some names."""

    path: str
    owner: Any
    attribute: str
    container: Any
    entries: dict[Any, Any]
    partial: bool = False
    outside: bool = False


DRAWING = (random.Random, np.random.Generator, np.random.RandomState, itertools.count)
"""Objects that give another value at each call."""


CONTAINERS = (OrderedDict, dict, list, deque, set)
_READ_BY = ("__iter__", "__len__", "__getitem__", "__setitem__", "__delitem__", "keys", "items")


def is_plain_container(value: Any) -> bool:
    """Whether a container is read and filled by the methods of Python's own."""
    kind = type(value)
    base = next(base for base in CONTAINERS if isinstance(value, base))
    return kind is Counter or all(
        getattr(kind, name, None) is getattr(base, name, None) for name in _READ_BY
    )


def drawing_state(value: Any) -> Any:
    """What an object will give next."""
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


def entry_place(holder: Holder, key: Any) -> tuple[str, str]:
    """Path and attribute of an entry."""
    if isinstance(holder.container, types.CellType):
        return str(key), str(key)
    if isinstance(holder.container, (list, set, deque)) or holder.attribute:
        text = f"{key!r:.40}" if isinstance(key, PLAIN) else f"a {type(key).__name__}"
        return f"{holder.path}[{text}]", holder.attribute
    return f"{holder.path}{key}", str(key)


def place_of(holder: Holder, key: Any) -> Place:
    """Where an entry is held; ``WHOLE`` as its key stands for all entries."""
    try:
        hash(key)
    except TypeError:
        key = id(key)
    return id(holder.container), key


WHOLE = "all entries of a container"


def differences(holder: Holder, later: Holder) -> list[Change]:
    """Entries of a container that are others later.

    Args:
        holder: The container with its entries.
        later: The same container, later.
    """
    container, old, new = holder.container, holder.entries, later.entries
    if isinstance(container, DRAWING):
        if repr(old) == repr(new):
            return []
        drawn = _whole(holder, "a state", "another one")
        return [replace(drawn, draws=not isinstance(container, itertools.count))]
    if isinstance(container, CACHED):
        if len(old) == len(new):
            return []
        grown = _whole(holder, "the results that it keeps", "others")
        return [replace(grown, caches=True)]
    if isinstance(container, np.ndarray):
        if np.array_equal(old["state"], new["state"], equal_nan=container.dtype.kind in "fc"):
            return []
        return [_whole(holder, "an array", "another one")]
    if isinstance(container, (list, set, deque)):
        pairs = enumerate(zip(old.values(), new.values(), strict=False))
        moved = [(i, a, b) for i, (a, b) in pairs if not same(a, b)]
        if len(old) == len(new) and not moved:
            return []
        where = holder.path, holder.attribute, f"{len(old)} entries", f"{len(new)} entries"
        if len(old) != len(new) or not isinstance(container, list):
            return [_whole(holder, *where[2:])]
        return [_change(holder, *where, (place_of(holder, i),), a, b) for i, a, b in moved]
    found: list[Change] = []
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key, MISSING), new.get(key, MISSING)
        if same(before, after):
            continue
        places = [place_of(holder, key)]
        if (before is MISSING or after is MISSING) and not _is_namespace(holder):
            places = [place_of(holder, WHOLE)]
        if before is MISSING and isinstance(holder.owner, type):
            before = getattr(holder.owner, str(key), MISSING)
        text = _text(concrete(before)), _text(concrete(after))
        where = entry_place(holder, key)
        found.append(_change(holder, *where, *text, places=tuple(places), old=before, new=after))
    return found


def _is_namespace(holder: Holder) -> bool:
    """Whether Python looks entries up by name, and nobody asks which there are."""
    return holder.partial or holder.attribute == ""


def _whole(holder: Holder, before: str, after: str) -> Change:
    places = (place_of(holder, WHOLE),)
    return _change(holder, holder.path, holder.attribute, before, after, places=places)


def _change(
    holder: Holder,
    path: str,
    attribute: str,
    before: str,
    after: str,
    places: tuple[Place, ...],
    old: Any = None,
    new: Any = None,
) -> Change:
    return Change(
        path=path,
        owner=holder.owner,
        attribute=attribute,
        before=before,
        after=after,
        places=places,
        old=old,
        new=new,
    )


def _text(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return f"{value!r:.40}" if isinstance(value, PLAIN) else f"a {type(value).__name__}"


def same(old: Any, new: Any) -> bool:
    """Whether two values are the same: by value where they are plain, else by identity."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(same, old, new))
    if is_observed(old):
        return False
    if isinstance(old, float):
        return repr(old) == repr(new)  # nan is itself, and -0.0 is not 0.0
    return isinstance(old, PLAIN) and old == new


def fill(holder: Holder) -> None:
    """Give a container its entries again."""
    container, entries = holder.container, holder.entries
    if isinstance(container, types.CellType):
        container.cell_contents = next(iter(entries.values()))
    elif isinstance(container, DRAWING):
        _set_drawing_state(container, entries["state"])
    elif isinstance(container, CACHED):
        clear_if_traced(container)
    elif isinstance(container, np.ndarray):
        container[...] = entries["state"]
    elif isinstance(container, types.FunctionType):
        _fill_defaults(container, entries)
    elif isinstance(container, type):
        for key, value in entries.items():
            if container.__dict__.get(key, MISSING) is not value:
                setattr(container, key, value)
    elif isinstance(container, set):
        if container != set(entries):
            container.clear()
            container.update(entries)
    elif isinstance(container, (list, deque)):
        if not _identical(container, entries.values()):
            container.clear()
            container.extend(entries.values())
    elif isinstance(container, dict):
        _fill_mapping(container, entries, partial=holder.partial)
    else:
        _fill_slots(container, entries)


def defaults_of(function: types.FunctionType) -> dict[str, Any]:
    """The arguments of a function that have a default, with it."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=False)), **(function.__kwdefaults__ or {})}


def _fill_defaults(function: types.FunctionType, entries: dict[str, Any]) -> None:
    if all(entries.get(name) is value for name, value in defaults_of(function).items()):
        return
    by_name = function.__kwdefaults__ or {}
    plain = [value for name, value in entries.items() if name not in by_name]
    function.__defaults__ = tuple(plain) or None
    if by_name:
        function.__kwdefaults__ = {name: entries[name] for name in by_name}


def slots_of(value: Any) -> dict[str, Any]:
    """Attributes of an object that its classes keep in slots."""
    found: dict[str, Any] = {}
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            held = f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, held):
                found[held] = getattr(value, held)
    return found


def _fill_slots(value: Any, entries: dict[str, Any]) -> None:
    now = slots_of(value)
    for name in now.keys() - entries.keys():
        object.__delattr__(value, name)
    for name, held in entries.items():
        if now.get(name, MISSING) is not held:
            object.__setattr__(value, name, held)


def _fill_mapping(container: dict[Any, Any], entries: dict[Any, Any], *, partial: bool) -> None:
    added = [key for key in container if key not in entries]
    if not partial:
        for key in added:
            del container[key]
    elif not isinstance(container.get("__builtins__"), (dict, types.ModuleType)):
        for key in added:  # of a module, whose own entries are torch's
            if key not in OWN:
                del container[key]
    for key, value in entries.items():
        if container.get(key, MISSING) is not value:
            container[key] = value


def _identical(old: Iterable[Any], new: Iterable[Any]) -> bool:
    first, second = list(old), list(new)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
