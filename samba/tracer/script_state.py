"""What of a script's modules, classes and functions may be state of a model."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from samba.tracer.containers import ARRAYS, COLLECTIONS, DRAWING, PLAIN
from samba.tracer.observed import concrete
from samba.tracer.shown_tensors import ShownType
from samba.tracer.user_code import is_script_file


def global_state(
    function: types.FunctionType, names: Iterable[str]
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Global variables that a function may name, and those of files that it imports.

    Args:
        function: The function.
        names: What it names.

    Yields:
        How to begin the path of each variable, the function or the module that has them, and the
        variables by name.
    """
    own = function.__globals__
    entries = {name: own[name] for name in names if name in own}
    yield "", function, _readable(entries)
    around = own.get("__package__") or ""
    imported = (sys.modules.get(n) for name in names for n in (name, f"{around}.{name}"))
    waiting: list[Any] = [*entries.values(), *imported]
    looked: set[int] = set()
    while waiting:
        module = waiting.pop()
        if not isinstance(module, types.ModuleType) or id(module) in looked:
            continue
        looked.add(id(module))
        if _is_script(module):
            space = vars(module)
            found = {name: space[name] for name in names if name in space}
            yield f"{module.__name__}.", module, _readable(found)
            waiting += found.values()


def names_in(code: types.CodeType) -> Iterator[str]:
    """Global names in a function and in those defined inside of it.

    Args:
        code: Its code.
    """
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def _readable(entries: dict[str, Any]) -> dict[str, Any]:
    """Global variables that may be state: not modules, nothing of the interpreter or a trace."""
    return {
        key: value
        for key, value in entries.items()
        if not key.startswith("__") and not _is_no_state(concrete(value))
    }


def _is_script(module: types.ModuleType) -> bool:
    """Whether a module is a file of the user's, or a folder of such without a file of its own."""
    file, folders = vars(module).get("__file__"), vars(module).get("__path__")
    if not isinstance(file, str):
        file = next((os.path.join(f, "") for f in folders or () if isinstance(f, str)), "<none>")
    return is_script_file(file)


def is_script(function: types.FunctionType) -> bool:
    """Whether a function is written in a user's file, or typed in."""
    is_typed = function.__code__.co_filename.startswith("<")
    if is_typed and function.__globals__.get("__name__") == "__main__":
        return True
    return is_script_file(function.__code__.co_filename)


def functions_of(value: Any) -> Iterator[Any]:
    """What an entry of the body of a class calls, and the entry itself."""
    yield value
    match value:
        case staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield from (value.fget, value.fset)
        case functools.cached_property():
            yield value.func
        case _:
            pass


def is_held_by_class(value: Any) -> bool:
    """Whether an entry of the body of a class may be state, and not what defines the class."""
    kinds = (*PLAIN, *COLLECTIONS, *DRAWING, *ARRAYS, np.ndarray, torch.Tensor)
    return isinstance(value, (*kinds, types.SimpleNamespace)) or is_of_user(type(value))


def _is_no_state(value: Any) -> bool:
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType)
    return isinstance(value, types.ModuleType) or value is ShownType


def is_of_user(kind: type) -> bool:
    """Whether a class is defined in a user's file, or typed in."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "builtins":
        return False
    file = getattr(module, "__file__", None)
    return is_script_file(file) if file else kind.__module__ == "__main__"
