"""Values of Python code that note which code reads them, and that can be computed with unread.

A counter that is only counted up does not affect the results. To find out whether that is so, the
model is traced with an observed value in the counter's place. Sums and products with it are
observed values again; code that asks for its value (a comparison, an index, a size, a text) gets
the number and is noted. So a trace with observed values is the trace without them; beyond that it
tells what the graph cannot depend on.
"""

from __future__ import annotations

import itertools
import operator
import sys
import types
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from samba.tracer.torch_internals import tree_map
from samba.tracer.user_code import calling_line, is_logging, is_only_shown

Place = tuple[int, Hashable]
"""Where a value is held: the id of its container, and the entry there (its id, if not hashable)."""


@dataclass(slots=True)
class Watch:
    """What was read while a model was traced.

    Attributes:
        read: The places whose values were asked for, each with the line that asked first.
        decided: The same for values that were only compared, or asked whether they are true.
        outcomes: What these comparisons said, in their order.
        forced: What the first of them shall say.
        ended: Whether the trace is over; later reads do not count.
    """

    forced: tuple[bool, ...] = ()
    ended: bool = False
    outcomes: list[bool] = field(default_factory=lambda: list[bool]())
    decided: dict[Place, str] = field(default_factory=lambda: dict[Place, str]())
    read: dict[Place, str] = field(default_factory=lambda: dict[Place, str]())

    def note(self, roots: Iterable[Place]) -> None:
        """Somebody asks for a value.

        Args:
            roots: The places that it was computed from.
        """
        new = [root for root in roots if root not in self.read]
        if new and not self.ended:
            self.read.update(dict.fromkeys(new, calling_line()))

    def decide(self, roots: Iterable[Place], outcome: bool) -> bool:
        """Somebody compares a value.

        Args:
            roots: The places that it was computed from.
            outcome: What the comparison says.

        Returns:
            What it shall say.
        """
        if self.ended:
            return outcome
        place = len(self.outcomes)
        self.outcomes.append(self.forced[place] if place < len(self.forced) else outcome)
        for root in roots:
            self.decided.setdefault(root, calling_line())
        return self.outcomes[place]


class Observed:
    """A stand-in for a value while a model is traced, which notes how it is used.

    Args:
        value: The value.
        roots: The places that it was computed from.
        watch: What to tell of reads.

    Example:
        >>> watch = Watch()
        >>> n = Observed(2, frozenset({(0, "n")}), watch)
        >>> later = n + 1
        >>> (concrete(later), len(watch.read))
        (3, 0)
        >>> later > 2, len(watch.decided), float(later), len(watch.read)
        (True, 1, 3.0, 1)
    """

    __slots__ = ("_observed_roots", "_observed_value", "_observed_watch")

    def __init__(self, value: Any, roots: frozenset[Place], watch: Watch) -> None:
        _set(self, "_observed_value", value)
        _set(self, "_observed_roots", roots)
        _set(self, "_observed_watch", watch)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # as mocks do
        return type(_get(self, "_observed_value"))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        read = [_read(arg) for arg in args], {k: _read(v) for k, v in (kwargs or {}).items()}
        return func(*read[0], **read[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(_read(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_read(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_read(self), name)


_set = object.__setattr__
_get = object.__getattribute__


def is_observed(value: Any) -> bool:
    """Whether a value notes what reads it; a tuple does if one of its entries does."""
    if type(value) is tuple:
        return any(map(is_observed, value))
    return issubclass(type(value), Observed)


def roots_of(value: Any) -> frozenset[Place]:
    """The places that an observed value was computed from; none of a value itself."""
    if type(value) is tuple:
        return frozenset[Place]().union(*map(roots_of, value))
    return _get(value, "_observed_roots") if issubclass(type(value), Observed) else frozenset()


def concrete(value: Any) -> Any:
    """A value itself, with nobody noted."""
    if issubclass(type(value), Observed):
        return _get(value, "_observed_value")
    if type(value) is tuple and is_observed(value):
        return tuple(map(concrete, value))
    return value


def _read(value: Any) -> Any:
    """A value that somebody asks for."""
    if issubclass(type(value), Observed):
        if not _is_known(value):
            _get(value, "_observed_watch").note(_get(value, "_observed_roots"))
        return _get(value, "_observed_value")
    if type(value) in (list, tuple) and any(issubclass(type(v), Observed) for v in value):
        return type(value)(map(_read, value))
    return value


def _is_known(value: Any) -> bool:
    """Whether what is in a container does not depend on what was there."""
    return issubclass(type(value), ObservedContainer) and _get(value, "_observed_cleared")


# -- sums, products: observed again ---------------------------------------------------------------

_ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"),
    *("lshift", "rshift"),
)
_ALONE = ("neg", "pos", "abs", "invert")


def _plain(value: Any) -> bool:
    """Whether computing with a value runs no code that could see what it computes with."""
    kind = type(concrete(value))
    return kind in (bool, int, float, complex, str, bytes, list, tuple) or (
        kind.__module__ == "numpy" and kind.__name__ != "ndarray"
    )


def _computed(function: Callable[..., Any], *operands: Any) -> Any:
    if not all(map(_plain, operands)):
        return function(*map(_read, operands))
    sources = [o for o in operands if issubclass(type(o), Observed)]
    roots = frozenset[Place]().union(*map(roots_of, sources))
    result = function(*map(concrete, operands))
    return result if result is NotImplemented else _observe(result, roots, _watch_of(sources[0]))


def _observe(value: Any, roots: frozenset[Place], watch: Watch) -> Observed:
    if isinstance(value, itertools.count):
        return _Counted(value, roots, watch)
    held = isinstance(value, (list, deque, dict, set, array, bytearray))
    kind = ObservedContainer if held else Observed
    return kind(value, roots, watch)


def _watch_of(value: Any) -> Watch:
    return _get(value, "_observed_watch")


def _operator(name: str) -> Callable[..., Any]:
    return getattr(operator, f"{name}_" if name in ("and", "or") else name)


def _add_arithmetic() -> None:
    for name in _ARITHMETIC:
        function = _operator(name)
        setattr(Observed, f"__{name}__", lambda a, b, f=function: _computed(f, a, b))
        setattr(Observed, f"__r{name}__", lambda a, b, f=function: _computed(f, b, a))
    for name in _ALONE:
        function = _operator(name)
        setattr(Observed, f"__{name}__", lambda a, f=function: _computed(f, a))


# -- everything else asks for the value -----------------------------------------------------------

_ASKING: dict[str, Callable[..., Any]] = {
    "__complex__": complex,
    "__hash__": hash,
    "__len__": len,
    "__iter__": iter,
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__next__": next,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
    "__round__": round,
    "__bytes__": bytes,
    "__divmod__": divmod,
    "__rdivmod__": lambda a, b: divmod(b, a),
    "__reversed__": reversed,
    "__matmul__": operator.matmul,
    "__rmatmul__": lambda a, b: b @ a,
    "__dir__": dir,
    "__call__": lambda f, *args, **kwargs: f(*args, **kwargs),
    "__enter__": lambda v: v.__enter__(),
    "__exit__": lambda v, *args: v.__exit__(*args),
    "__reduce_ex__": lambda v, protocol: v.__reduce_ex__(protocol),
}


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*map(_read, args), **kwargs)


def _add_asking() -> None:
    for name, function in _ASKING.items():
        setattr(Observed, name, _asking(function))


_COMPARING: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "__bool__": bool,
}


def _compared(function: Callable[..., Any], *operands: Any) -> Any:
    if not all(map(_plain, operands)):
        return function(*map(_read, operands))
    sources = [o for o in operands if issubclass(type(o), Observed) and not _is_known(o)]
    outcome = function(*map(concrete, operands))
    if not sources or not isinstance(outcome, bool):
        return function(*map(_read, operands))
    roots = frozenset[Place]().union(*map(roots_of, sources))
    return _watch_of(sources[0]).decide(roots, outcome)


def _add_comparing() -> None:
    for name, function in _COMPARING.items():
        setattr(Observed, name, lambda *operands, f=function: _compared(f, *operands))


_SHOWING: dict[str, Callable[..., Any]] = {"__str__": str, "__repr__": repr, "__format__": format}
_LOGGED: dict[str, Callable[..., Any]] = {
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
}


def _shown(where: Callable[[Any], bool], function: Callable[..., Any], *args: Any) -> Any:
    if where(sys._getframe(2)):
        return function(*map(concrete, args))
    return function(*map(_read, args))


def _add_showing() -> None:
    for where, functions in ((is_only_shown, _SHOWING), (is_logging, _LOGGED)):
        for name, function in functions.items():
            setattr(Observed, name, lambda *args, w=where, f=function: _shown(w, f, *args))


_add_arithmetic()
_add_comparing()
_add_showing()
_add_asking()


# -- containers -----------------------------------------------------------------------------------


class ObservedContainer(Observed):
    """A list, deque, dict or set that may be written to; reading it is noted until it is cleared.

    Example:
        >>> watch, log = Watch(), [1, 2]
        >>> container = ObservedContainer(log, frozenset({(0, "log")}), watch)
        >>> container.append(3)
        >>> log, len(watch.read)
        ([1, 2, 3], 0)
        >>> len(container), len(watch.read)
        (3, 1)
    """

    __slots__ = ("_observed_cleared",)

    def __init__(self, value: Any, roots: frozenset[Place], watch: Watch) -> None:
        super().__init__(value, roots, watch)
        _set(self, "_observed_cleared", False)

    def __getattr__(self, name: str) -> Any:
        container = _get(self, "_observed_value")
        if name in _WRITING:
            return getattr(container, name)
        if name == "clear":
            return lambda: _clear(self)
        return super().__getattr__(name)

    def __getitem__(self, key: Any) -> Any:
        container = _get(self, "_observed_value")
        if type(key) is slice and isinstance(container, list) and not _is_known(self):
            return _observe(container[key], _get(self, "_observed_roots"), _watch_of(self))
        return _read(self)[_read(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        container = _get(self, "_observed_value")
        if isinstance(container, dict):
            container[concrete(key)] = value
        elif type(key) is slice and key == slice(None):
            container[:] = value
            _set(self, "_observed_cleared", True)
        else:
            _read(self)[_read(key)] = value

    def __iadd__(self, other: Any) -> ObservedContainer:
        container = _get(self, "_observed_value")
        container += concrete(other)
        return self

    def __ior__(self, other: Any) -> ObservedContainer:
        container = _get(self, "_observed_value")
        container |= concrete(other)
        return self


_WRITING = frozenset({"append", "appendleft", "extend", "extendleft", "add", "update", "insert"})


def _clear(container: ObservedContainer) -> None:
    _get(container, "_observed_value").clear()
    _set(container, "_observed_cleared", True)


class _Counted(Observed):
    """An ``itertools.count`` whose numbers are observed."""

    __slots__ = ()

    def __next__(self) -> Any:
        number = next(_get(self, "_observed_value"))
        return Observed(number, _get(self, "_observed_roots"), _watch_of(self))

    def __iter__(self) -> Any:
        return self


_NEVER = (
    *(bool, type(None), torch.dtype, torch.device, torch.Tensor, torch.nn.Module, type),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, Enum),
)
"""Kinds that Python and torch ask for in ways that nothing can note: ``is``, their memory."""


def observed(value: Any, place: Place, watch: Watch) -> Any:
    """An observed value in a value's place; the value itself if it cannot be observed.

    Args:
        value: The value.
        place: Where it is held.
        watch: What to tell of reads.
    """
    if type(value) is tuple:
        return tuple([observed(item, place, watch) for item in value])
    return value if isinstance(value, _NEVER) else _observe(value, frozenset({place}), watch)


def asked(result: Any) -> Any:
    """What ``forward`` returns: everybody reads that.

    Args:
        result: What it returns.

    Returns:
        The same with the values themselves where it holds observed ones.
    """
    return tree_map(_read, result)
