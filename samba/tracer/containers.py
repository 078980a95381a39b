"""Containers of Python code with their entries: how these are read, compared and put back."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import random
import types
import warnings
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samba.tracer.observed import Place, concrete, is_observed
from samba.tracer.torch_internals import FakeTensor

OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has, for torch."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
"""Types of values that are compared by value."""

COLLECTIONS = (OrderedDict, dict, list, deque, set)

DRAWING = (random.Random, np.random.Generator, np.random.RandomState, itertools.count)
"""Objects that give another value at each call."""

ARRAYS = (array, bytearray)
"""Python's own lists of numbers."""

CACHED = type(functools.lru_cache(maxsize=1)(repr))
"""The class of functions that keep their results: they can be read and cleared, not put back."""

WHOLE = "all entries of a container"

_MISSING = object()

_READ_BY = ("__iter__", "__len__", "__getitem__", "__setitem__", "__delitem__", "keys", "items")

_MOST_BYTES = 1 << 20
"""Largest array whose contents are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry that is another than before.

    Args:
        path: Where, as one would write it, from the model on: ``encoder.steps``.
        owner: The class or function whose code names it.
        attribute: The name there.
        before, after: What it was and is, for a reader.
        places: Where the value is.
        old, new: What was there and is now: None where that is more than one value.
        draws: Whether it is a generator of random numbers that has drawn.
        caches: Whether it is a function that has kept more results.
        held: Whether it is a parameter or a buffer that is another one.
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
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A container with the entries that it has at one moment: all of them, or some.

    Args:
        path: Where the container is, as one would write it, from the model on.
        owner: The class or function whose code names it.
        attribute: The name there; empty for a namespace, whose entries have names of their own.
        container: The container: a namespace, a collection, a generator, a cell, a function.
        entries: Its entries by key.
        partial: Whether it has others, too.
        outside: Whether it is outside of the model: in global variables or closures.
    """

    path: str
    owner: Any
    attribute: str
    container: Any
    entries: dict[Any, Any]
    partial: bool = False
    outside: bool = False

    def named(self, key: Any) -> tuple[str, str]:
        """Path and attribute of an entry."""
        if isinstance(self.container, types.CellType):
            return str(key), str(key)
        if isinstance(self.container, (list, set, deque)) or self.attribute:
            text = f"{key!r:.40}" if isinstance(key, PLAIN) else f"a {type(key).__name__}"
            return f"{self.path}[{text}]", self.attribute
        return f"{self.path}{key}", str(key)

    def place_of(self, key: Any) -> Place:
        """Where an entry is; ``WHOLE`` as its key stands for all entries."""
        try:
            hash(key)
        except TypeError:
            key = id(key)
        return id(self.container), key

    # -- compared with later ones -------------------------------------------------

    def changes(self, later: Contents) -> list[Change]:
        """Entries that are others later.

        Args:
            later: The same container, later.
        """
        container, old, new = self.container, self.entries, later.entries
        if isinstance(container, DRAWING):
            draws = not isinstance(container, itertools.count)
            same = repr(old) == repr(new)
            return [] if same else [self._whole("a state", "another one", draws=draws)]
        if is_iterator(container):
            return [] if old == new else [self._whole("a position", "a later one")]
        if isinstance(container, CACHED):
            words = ("the results that it keeps", "others")
            return [] if len(old) == len(new) else [self._whole(*words, caches=True)]
        if isinstance(container, (np.ndarray, *ARRAYS)):
            before, after = old["state"], new["state"]
            if isinstance(container, np.ndarray):
                nan = container.dtype.kind in "fc"
                same = np.array_equal(before, after, equal_nan=nan)
            else:
                same = before == after
            return [] if same else [self._whole("an array", "another one")]
        if isinstance(container, (list, set, deque)):
            pairs = enumerate(zip(old.values(), new.values(), strict=False))
            moved = [(i, a, b) for i, (a, b) in pairs if not _same(a, b)]
            if len(old) == len(new) and not moved:
                return []
            texts = f"{len(old)} entries", f"{len(new)} entries"
            if len(old) != len(new) or not isinstance(container, list):
                return [self._whole(*texts)]
            own = self.path, self.attribute
            return [self._change(*own, *texts, key=i, old=a, new=b) for i, a, b in moved]
        return [
            self._changed_entry(key, old.get(key, _MISSING), new.get(key, _MISSING))
            for key in dict.fromkeys((*old, *new))
            if not _same(old.get(key, _MISSING), new.get(key, _MISSING))
        ]

    def _changed_entry(self, key: Any, old: Any, new: Any) -> Change:
        # No code asks which names a namespace has.
        added = (old is _MISSING or new is _MISSING) and not (self.partial or not self.attribute)
        if old is _MISSING and isinstance(self.owner, type):
            old = getattr(self.owner, str(key), _MISSING)
        texts = _text(concrete(old)), _text(concrete(new))
        return self._change(*self.named(key), *texts, key=WHOLE if added else key, old=old, new=new)

    def _whole(self, before: str, after: str, **kind: bool) -> Change:
        return self._change(self.path, self.attribute, before, after, key=WHOLE, **kind)

    def _change(
        self, path: str, attribute: str, before: str, after: str, *, key: Any, **rest: Any
    ) -> Change:
        return Change(
            path=path,
            owner=self.owner,
            attribute=attribute,
            before=before,
            after=after,
            places=(self.place_of(key),),
            **rest,
        )

    # -- put back -----------------------------------------------------------------

    def put_back(self) -> None:
        """Give the container its entries again."""
        container, entries = self.container, self.entries
        if isinstance(container, types.CellType):
            container.cell_contents = next(iter(entries.values()))
        elif isinstance(container, DRAWING):
            _set_drawing_state(container, entries["state"])
        elif is_iterator(container):
            pass  # it cannot go back
        elif isinstance(container, CACHED):
            if any(map(_is_traced, _cached_results(container))):
                container.cache_clear()  # no other call can use a tensor of a trace
        elif isinstance(container, np.ndarray):
            container[...] = entries["state"]
        elif isinstance(container, ARRAYS):
            container[:] = array(getattr(container, "typecode", "B"), entries["state"])
        elif isinstance(container, ContextVar):
            if entries["value"] is not _MISSING:
                container.set(entries["value"])
        elif isinstance(container, types.FunctionType):
            _set_defaults(container, entries)
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
        elif isinstance(container, dict):
            self._put_back_mapping(container)
        else:
            _set_slots(container, entries)

    def _put_back_mapping(self, container: dict[Any, Any]) -> None:
        added = [key for key in container if key not in self.entries]
        if not self.partial:
            if not _identical(container, self.entries):
                container.clear()  # the order is that of before, too
        elif not _is_of_a_module(container):
            for key in added:  # of a module, whose own entries are torch's
                if key not in OWN:
                    del container[key]
        for key, value in self.entries.items():
            if container.get(key, _MISSING) is not value:
                container[key] = value


def _is_of_a_module(namespace: dict[Any, Any]) -> bool:
    """Whether a dict has the global names of a module, or of a package without a file."""
    builtins = namespace.get("__builtins__")
    return isinstance(builtins, (dict, types.ModuleType)) or "__spec__" in namespace


def entries_of(value: Any) -> dict[Any, Any] | None:
    """The entries of a container that is not a namespace.

    Args:
        value: A collection, a generator, an iterator, an array, a context variable, or a
            function: its defaults, or the results that it keeps.

    Returns:
        The entries by key; None if reading them may run code of a class, or takes much memory.
    """
    if isinstance(value, DRAWING):
        return {"state": _drawing_state(value)}
    if is_iterator(value):
        return {"state": _position(value)}
    if isinstance(value, np.ndarray):
        is_state = value.flags.writeable and not value.dtype.hasobject
        return {"state": value.copy()} if is_state and value.nbytes <= _MOST_BYTES else None
    if isinstance(value, ARRAYS):
        return {"state": bytes(value)} if memoryview(value).nbytes <= _MOST_BYTES else None
    if isinstance(value, ContextVar):
        return {"value": value.get(_MISSING)}
    if isinstance(value, CACHED):
        return dict(enumerate(_cached_results(value)))
    if isinstance(value, types.FunctionType):
        return _defaults_of(value)
    if not _is_plain_collection(value):
        return None
    if isinstance(value, (list, deque)):
        return dict(enumerate(value))
    return {item: item for item in value} if isinstance(value, set) else dict(value)


def slots_of(value: Any) -> dict[str, Any]:
    """Attributes of an object that its classes keep in slots."""
    attributes: dict[str, Any] = {}
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            own = f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, own):
                attributes[own] = getattr(value, own)
    return attributes


def _set_slots(value: Any, entries: dict[str, Any]) -> None:
    now = slots_of(value)
    for name in now.keys() - entries.keys():
        object.__delattr__(value, name)
    for name, old in entries.items():
        if now.get(name, _MISSING) is not old:
            object.__setattr__(value, name, old)


def _is_plain_collection(value: Any) -> bool:
    """Whether a collection is read and filled by the methods of Python's own."""
    kind = type(value)
    base = next(base for base in COLLECTIONS if isinstance(value, base))
    return kind is Counter or all(
        getattr(kind, name, None) is getattr(base, name, None) for name in _READ_BY
    )


def _drawing_state(value: Any) -> Any:
    """What a generator will give next."""
    if isinstance(value, random.SystemRandom):
        return None  # it has none
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.get_state() if isinstance(value, np.random.RandomState) else repr(value)


def _set_drawing_state(value: Any, state: Any) -> None:
    """Let a generator go on from a state; a count cannot go back."""
    if state is None:
        return
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, which cannot go back to where it was."""
    kind = type(value)
    return (
        isinstance(value, Iterator)
        and kind.__module__ in ("builtins", "itertools")
        and not isinstance(value, DRAWING)
    )


def _position(iterator: Any) -> str:
    """What tells where an iterator is from where it was, without asking it for more.

    Empty if it does not tell: from Python 3.14 on, those of ``itertools`` do not.
    """
    frame: Any = getattr(iterator, "gi_frame", _MISSING)
    if frame is not _MISSING:
        held = {} if frame is None else frame.f_locals
        plain = {key: value for key, value in held.items() if isinstance(value, PLAIN)}
        inner = [_position(value) for value in held.values() if is_iterator(value)]
        return f"{getattr(frame, 'f_lasti', None)} {plain} {inner}"
    rest = operator.length_hint(iterator, -1)
    if rest >= 0:
        return f"{rest}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = iterator.__reduce__()[1:]
    except (AttributeError, TypeError):
        return ""
    flat = [leaf for part in parts for leaf in (part if isinstance(part, tuple) else (part,))]
    return f"{[_position(leaf) if is_iterator(leaf) else repr(leaf)[:40] for leaf in flat]}"


def _defaults_of(function: types.FunctionType) -> dict[str, Any]:
    """The arguments of a function that have a default, with it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=False)), **(function.__kwdefaults__ or {})}


def _set_defaults(function: types.FunctionType, entries: dict[str, Any]) -> None:
    if all(entries.get(name) is value for name, value in _defaults_of(function).items()):
        return
    by_name = function.__kwdefaults__ or {}
    plain = [value for name, value in entries.items() if name not in by_name]
    function.__defaults__ = tuple(plain) or None
    if by_name:
        function.__kwdefaults__ = {name: entries[name] for name in by_name}


def _cached_results(function: Any) -> list[Any]:
    """The results that a function keeps; with a limit, the arguments of each as well."""
    own = vars(function)
    parts = [part for part in gc.get_referents(function) if part is not own]
    if function.cache_info().maxsize is None:
        return [result for part in parts if isinstance(part, dict) for result in part.values()]
    apart = (function.__wrapped__, type(function))
    return [
        part
        for part in parts
        if not isinstance(part, type)
        and type(part) is not object  # a mark between arguments
        and all(part is not other for other in apart)
        and not (isinstance(part, dict) and _is_cache(part))
    ]


def _is_cache(part: dict[Any, Any]) -> bool:
    return all(type(link).__name__ == "_lru_list_elem" for link in part.values())


def _is_traced(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_traced, value))
    if isinstance(value, dict):
        return any(map(_is_traced, value.values()))
    return isinstance(value, FakeTensor)


def _text(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return f"{value!r:.40}" if isinstance(value, PLAIN) else f"a {type(value).__name__}"


def _same(old: Any, new: Any) -> bool:
    """Whether two values are the same: by value where they are plain, else by identity."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    if is_observed(old):
        return False
    if isinstance(old, torch.nn.Module):
        return _are_alike(old, new)
    if isinstance(old, float):
        return repr(old) == repr(new)  # nan is itself, and -0.0 is not 0.0
    return isinstance(old, PLAIN) and old == new


def _are_alike(old: torch.nn.Module, new: torch.nn.Module) -> bool:
    """Whether two modules of one class are the same but for their identity: layers without state.

    ``forward`` may make such a layer in each call.
    """
    ours, theirs = vars(old), vars(new)
    tables = [
        table for each in (ours, theirs) for table in each.values() if isinstance(table, dict)
    ]
    if any(tables) or ours.keys() != theirs.keys():
        return False
    plain = [key for key in ours if key not in OWN or key == "training"]
    return all(_same(ours[key], theirs[key]) for key in plain)


def _identical(old: Iterable[Any], new: Iterable[Any]) -> bool:
    first, second = list(old), list(new)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
