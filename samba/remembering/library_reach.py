"""What code of others names that runs in ``forward``: it is followed from name to name.

A library's version says what its code is, and not what flags and registries of its modules hold.
Whether code runs is told by names: that of ``forward`` and what it names, and so on. Torch, NumPy
and Python are not followed; their settings are asked for by name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from samba.remembering.code_names import names_in
from samba.remembering.code_origins import is_own, is_users
from samba.remembering.digest import Digest
from samba.remembering.incomparable import Incomparable

__all__ = ["Reach", "is_followed"]

_NOT_FOLLOWED = frozenset({"torch", "numpy", "jax", "jaxlib"})
_ALWAYS = frozenset({"forward"})
"""Names of methods that run, beside those with two underscores."""
_MAKE = frozenset({"__init__", "__new__", "__post_init__"})
"""Methods that run where code names the class."""
_REST = frozenset(
    {
        *("__del__", "__repr__", "__str__", "__dir__", "__sizeof__", "__init_subclass__"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__"),
        *("__deepcopy__", "__class_getitem__", "__subclasscheck__", "__instancecheck__"),
    }
)
"""Methods with two underscores that do not run because of what ``forward`` does."""
_MOST_FUNCTIONS = 5000


def is_followed(name: Any) -> bool:
    """Whether a module of others is looked into by name, and not torch's or Python's.

    Args:
        name: Its name; what is no text names none.

    Example:
        >>> is_followed("torch.nn"), is_followed("transformers")
        (False, True)
    """
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    known = top in _NOT_FOLLOWED or top in sys.builtin_module_names or is_own(name)
    return not known and top not in sys.stdlib_module_names


class Reach:
    """Adds to a digest what the code of others names.

    Args:
        add_outline: Adds an object that is named, and what it is called.
        state: The digest.

    Attributes:
        classes: Classes that objects of the model are of.
        functions: Functions that code of the user's names.
    """

    def __init__(self, add_outline: Callable[[Any, str], None], state: Digest) -> None:
        self._add_outline, self._state = add_outline, state
        self._names: set[str] = set(_ALWAYS)
        self._visited: set[int] = set()
        self._made: set[type] = set()
        self._entries: set[tuple[type, str]] = set()
        self.classes: list[type] = []
        self.functions: list[types.FunctionType] = []

    def add(self) -> None:
        """Add all that is named, from the classes and functions on."""
        known = -1
        while known != (known := len(self._visited) + len(self._names) + len(self.classes)):
            for function in self.functions:
                self._visit(function)
            self.classes = list(dict.fromkeys(self.classes))
            for kind in list(self.classes):
                if not is_followed(kind.__module__):
                    continue
                for name, item in list(vars(kind).items()):
                    if name in self._names or self._runs(kind, name):
                        self._visit(item)
                    if name in self._names and (kind, name) not in self._entries:
                        self._entries.add((kind, name))
                        self._state.put(kind.__qualname__, name)
                        self._add_outline(item, f"{kind.__qualname__}.{name}")

    def _runs(self, kind: type, name: str) -> bool:
        """Whether a method may run that no code names."""
        if name in _MAKE:
            return kind in self._made
        return name.startswith("__") and name.endswith("__") and name not in _REST

    def _visit(self, item: Any) -> None:
        """Follow a function, or what decorators have made of one."""
        if isinstance(item, (staticmethod, classmethod)):
            item = item.__func__
        if isinstance(item, property):
            for part in (item.fget, item.fset):
                self._visit(part)
        if not isinstance(item, types.FunctionType) or id(item) in self._visited:
            return
        if not is_followed(item.__module__) or is_users(item):
            return
        if len(self._visited) >= _MOST_FUNCTIONS:
            raise Incomparable(
                "forward", f"reaches more than {_MOST_FUNCTIONS} functions of others"
            )
        self._visited.add(id(item))
        self._state.put("reached", item.__module__, item.__qualname__)
        for cell in item.__closure__ or ():
            try:
                self._visit(cell.cell_contents)
            except ValueError:  # an empty one
                continue
        names = names_in(item.__code__)
        self._names |= names
        for name in sorted(names & item.__globals__.keys()):
            self._named(name, item.__globals__[name], names)

    def _named(self, name: str, item: Any, names: frozenset[str]) -> None:
        if isinstance(item, types.ModuleType):
            if is_followed(item.__name__):
                for each in sorted(names & vars(item).keys()):
                    if not isinstance(vars(item)[each], types.ModuleType):
                        self._named(f"{name}.{each}", vars(item)[each], names)
            return
        self._state.put(name)
        self._add_outline(item, name)
        if isinstance(item, types.FunctionType):
            self._visit(item)
        elif isinstance(item, type):
            self._made.update(item.__mro__)
            self.classes += item.__mro__
        else:
            self.classes += type(item).__mro__
