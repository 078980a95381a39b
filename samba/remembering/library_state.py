"""What a script has put into the modules and classes of others: patches, flags and registries.

Code of an installed distribution is known by its version. What its modules hold at run time is not:
a script may exchange a function, set a flag or register one of its own. Modules that a model's code
reaches are looked at closely; of all others, only what belongs to the user.
"""

from __future__ import annotations

import builtins
import functools
import logging
import os
import random
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

from samba.remembering.built_in_parts import BY_NAME, PLAIN
from samba.remembering.code_origins import is_own, is_users, is_users_module, source_files
from samba.remembering.digest import Digest
from samba.remembering.library_reach import Reach, is_followed
from samba.remembering.object_state import attributes_of
from samba.remembering.operations import add_operation

__all__ = ["OF_EVERY_CLASS", "Libraries"]

OF_EVERY_CLASS = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__qualname__", "__annotations__"),
        *("_abc_impl", "__abstractmethods__", "__slots__", "__static_attributes__"),
        *("__firstlineno__", "__orig_bases__", "__parameters__", "__match_args__"),
        *("__dataclass_params__", "_autograd_function_id", "__annotate_func__"),
        *("__dataclass_fields__", "__doc__"),
        *("__annotations_cache__", "__classdictcell__"),
    }
)
"""Attributes of a class that its source says, or that Python makes."""

_CODE = (types.FunctionType, types.BuiltinFunctionType, functools.partial, property)
"""What a module of others may be patched with."""
_NO_WRAPPERS = frozenset({*PLAIN, *BY_NAME})
"""Types of objects that stand for no function of the user's."""
_CONTAINERS = (dict, OrderedDict, defaultdict, list, tuple, set, frozenset, deque)
_DEPTH = 3
"""How deep containers of others are looked into: a registry of registries."""
_SMALLEST_ADDRESS = 1 << 32
_DRAWN = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")
"""A UUID of version 4, which a library draws anew in each process to name it."""
_NOT_TRACED = frozenset({"jax", "jaxlib"})
"""Libraries that no trace calls, only what runs it."""
_MOST_ITEMS = 20_000
"""Items of one container; a longer one counts by its length."""


class Libraries:
    """Adds to a digest what modules and classes of others hold.

    Args:
        state: The digest.
    """

    def __init__(self, state: Digest) -> None:
        self._state = state
        self._looked: set[tuple[str, str]] = set()
        self._outlined: dict[int, tuple[Any, int, int]] = {}
        self._reach = Reach(self.add_outline, state)

    def add_named(self, module: Any, names: frozenset[str]) -> None:
        """Add what code may name of a module of others: variables, and whose these are.

        Args:
            module: The module; anything else is passed over.
            names: Names in the code.
        """
        if not isinstance(module, types.ModuleType) or is_users_module(module.__name__):
            return
        self.add_patches(module.__name__)
        for name in sorted(names & vars(module).keys()):
            if (module.__name__, name) in self._looked:
                continue
            self._looked.add((module.__name__, name))
            item = vars(module)[name]
            owner = getattr(item, "__self__", None)
            if isinstance(item, type) or _draws(owner):
                self._state.put(name)
                self._state.add(owner if _draws(owner) else item, f"{module.__name__}.{name}")
            elif not isinstance(item, types.ModuleType):
                self._state.put(name)
                self.add_outline(item, f"{module.__name__}.{name}")
            add_operation(self._state, item)
            self.add_named(item, names)

    def add_class(self, kind: type) -> None:
        """Add what a class of others holds, and its module.

        Args:
            kind: The class.
        """
        for name, item in list(vars(kind).items()):
            if name not in OF_EVERY_CLASS:
                self._entry(name, item, kind.__qualname__)
        self.add_patches(kind.__module__)
        self._reach.classes.append(kind)

    def add_function(self, function: types.FunctionType) -> None:
        """Add what lies around a function of others.

        Args:
            function: The function.
        """
        if isinstance(function.__module__, str):
            self.add_patches(function.__module__)
        self._reach.functions.append(function)

    def add_reached(self) -> None:
        """Add what the code of others names that runs in ``forward``: flags and registries."""
        self._reach.add()

    def add_patches(self, name: str) -> None:
        """Add what a module of others holds.

        Args:
            name: Name of the module.
        """
        module = sys.modules.get(name)
        if module is None or (name, "*") in self._looked:
            return
        self._looked.add((name, "*"))
        self._state.put("patches", name)
        for variable, item in list(vars(module).items()):
            if isinstance(item, _CODE):
                self._entry(variable, item, name)
            elif type(item) in PLAIN and not is_followed(name):
                self._state.put(variable, repr(item))

    def add_users(self) -> None:
        """Add functions and classes of the user's files that any module of others has.

        Python's own modules are left out: they are looked at where code names them.
        """
        sources = source_files()
        files, names = sources.keys(), frozenset(sources.values())

        seen = {id(vars(builtins))}  # which each module has a reference to

        def is_theirs(value: Any) -> bool:
            kind = type(value)  # there are half a million of these: files are looked up, not found
            if kind is types.FunctionType:
                return value.__code__.co_filename in files
            return issubclass(kind, type) and value.__module__ in names

        for name, module in sorted(sys.modules.items(), key=lambda entry: entry[0]):
            if not isinstance(module, types.ModuleType) or name in names:
                continue
            top = name.partition(".")[0]
            if is_own(name) or top in _NOT_TRACED or top in sys.stdlib_module_names:
                continue
            for variable, item in list(vars(module).items()):
                if type(item) is dict:
                    if id(item) in seen:
                        continue
                    seen.add(id(item))
                    for key, entry in list(item.items()):
                        if is_theirs(key) or is_theirs(entry):
                            self._state.put("in", name, variable)
                            self._state.add((key, entry), f"an entry of {name}.{variable}")
                elif is_theirs(item):
                    self._state.put("in", name, variable)
                    self._state.add(item, f"{name}.{variable}")

    def _entry(self, name: str, item: Any, owner: str) -> None:
        """An entry of a class or module of others: by version, unless it is not its own."""
        self._state.put(name)
        if type(item) in _NO_WRAPPERS:
            held: tuple[Any, ...] = ()
        else:
            parts = ("__wrapped__", "func", "fget", "__func__")
            held = (item, *(getattr(item, part, None) for part in parts))
        if any(is_users(each) for each in held if each is not None):
            self._state.add(item, f"{owner}.{name}")
        else:
            self.add_outline(item, f"{owner}.{name}")

    def add_outline(self, item: Any, place: str, depth: int = _DEPTH) -> None:
        """Add what a module of others holds, by names: all of it, where it is the user's.

        Args:
            item: An object.
            place: What it is called.
            depth: How deep it is looked into.
        """
        kind = type(item)
        state = self._state
        if kind in PLAIN:
            state.put(kind.__name__, "drawn" if _is_drawn(item) else repr(item))
            return
        _, known, number = self._outlined.get(id(item), (item, -1, len(self._outlined)))
        if known >= depth:
            state.put("again", str(number))
            return
        self._outlined[id(item)] = item, depth, number
        if is_users(item) or (not isinstance(item, type) and is_users(kind)):
            state.add(item, place)
        elif isinstance(item, types.FunctionType):
            # No line: torch itself wraps functions of its own when its compiler is loaded.
            state.put(str(item.__module__), item.__qualname__)
            if depth and is_followed(item.__module__):
                cells = [_content(cell) for cell in item.__closure__ or ()]
                for each in (item.__defaults__, item.__kwdefaults__, *cells):
                    self.add_outline(each, place, depth - 1)
        elif isinstance(item, type):
            state.put("class", str(item.__module__), item.__qualname__)
        elif kind in _CONTAINERS and len(item) > _MOST_ITEMS:
            state.put(kind.__name__, str(len(item)))
        elif kind in _CONTAINERS and depth:
            self._outlines(item, place, depth - 1)
        elif kind is functools.partial and depth:
            self.add_outline((item.func, item.args, item.keywords), place, depth - 1)
        elif depth and _has_attributes(kind):
            state.put(str(kind.__module__), kind.__qualname__)
            for name, held in attributes_of(item, kind):
                state.put(name)
                self.add_outline(held, f"{place}.{name}", depth - 1)
        elif isinstance(item, types.ModuleType):  # some make what they are asked for
            state.put("module", str(vars(item).get("__name__")))
        else:
            state.put(kind.__qualname__, str(getattr(item, "__qualname__", "")))

    def _outlines(self, items: Any, place: str, depth: int) -> None:
        self._state.put(type(items).__name__, str(len(items)))
        if isinstance(items, (set, frozenset)):
            self._state.put(*sorted(repr(item) for item in items if type(item) in PLAIN))
            return
        if isinstance(items, dict):
            items = [part for entry in list(items.items()) for part in entry]
        for item in list(items):
            self.add_outline(item, f"an entry of {place}", depth)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "an empty cell"


def _is_drawn(value: Any) -> bool:
    """Whether a library's text or number is one that each process has anew and names itself by."""
    if type(value) is int:  # an address, a hash, a process
        return value == os.getpid() or value >= _SMALLEST_ADDRESS
    return type(value) is str and _DRAWN.fullmatch(value) is not None


def _draws(owner: Any) -> bool:
    """Whether a function of a module draws from a generator of the module's."""
    return isinstance(owner, (random.Random, np.random.RandomState))


def _has_attributes(kind: type) -> bool:
    """Whether objects of a class have attributes of their own that Python knows, and keep still."""
    return bool(kind.__dictoffset__) and not issubclass(kind, _STATELESS)


_STATELESS = (
    *(type, types.ModuleType, types.FunctionType, logging.Logger, logging.Handler),
    *(threading.Event, threading.Condition, BaseException, torch.Tensor),
)
