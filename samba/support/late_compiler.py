"""Parts of torch's compiler, loaded where something of them is used, and not where nothing is.

Optimizers of torch and its kernels in Python are marked as nothing that ``torch.compile`` looks
into. Their first call loads the compiler for that, 800 modules in two seconds, although it does not
run (torch 2.13). Nothing has to be switched off before it is loaded.

Kernels that find the form of a result take symbols for numbers, too. The first of them loads a
library of symbolic mathematics for that, 400 modules in a second. There are no symbols before it is
loaded.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.fx.experimental._config  # noqa: F401  # the module of symbols brings it

_MARK = "__dynamo_disable"
"""Where torch keeps the form of a function in which the compiler is switched off."""


class _Late(ModuleType):
    """Stands for a module that is not loaded, until it is asked for what it has not.

    Args:
        name: The module's.
        answers: What it has.
        is_package: Whether the module has modules below it.
    """

    def __init__(self, name: str, answers: Mapping[str, Any], *, is_package: bool = True) -> None:
        super().__init__(name)
        self.__dict__.update(answers)
        self.__dict__["_answers"] = tuple(answers)
        self.__dict__["_is_package"] = is_package

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and not self._is_package:  # an import asks every module for it
            raise AttributeError(name)
        self.remove()
        return getattr(importlib.import_module(self.__name__), name)

    def put(self) -> None:
        """Let imports find this in the place of the module."""
        sys.modules[self.__name__] = self
        package, _, name = self.__name__.rpartition(".")
        if package:
            setattr(sys.modules[package], name, self)

    def remove(self) -> None:
        """Let the next import load the module; whoever has this one is given what that has."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        package, _, name = self.__name__.rpartition(".")
        if package and vars(sys.modules[package]).get(name) is self:
            delattr(sys.modules[package], name)
        for answer in self._answers:
            vars(self).pop(answer, None)


class _Compiler(_Late):
    """The compiler, until more of it is used than to switch it off."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo", {"disable": self._disable})
        self.__dict__["_switched_off"] = []

    def _disable(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """The function itself: there is nothing that would look into it."""
        self._switched_off.append(fn)
        return fn

    def remove(self) -> None:
        """Let the next import load the compiler; functions are asked for again then."""
        super().remove()
        while self._switched_off:
            vars(self._switched_off.pop()).pop(_MARK, None)


def _truth(value: bool) -> bool:
    if not isinstance(value, bool):
        raise AssertionError(f"Expected bool, got {value}")
    return value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "expect_true": _truth,
    "guard_or_true": _truth,
    "guard_or_false": _truth,
    "guard_size_oblivious": _truth,
    "statically_known_true": _truth,
    "guard_int": lambda number: number,
    "guarding_hint_or_throw": lambda number: number,
    "has_guarding_hint": lambda number: True,
    "is_nested_int": lambda number: False,
    "sym_eq": _equal,
    "sym_and": lambda *values: functools.reduce(operator.and_, values),
    "sym_or": lambda *values: functools.reduce(operator.or_, values),
}
"""What torch's kernels ask of numbers that may be symbols, for those that are none."""


class _Expression:
    """The class of symbolic expressions, of which there are none."""


def _all_late() -> list[_Late]:
    symbols = "torch.fx.experimental.symbolic_shapes"
    return [
        _Compiler(),
        _Late(symbols, _OF_NUMBERS, is_package=False),
        _Late("sympy", {"Basic": _Expression}),
    ]


@contextmanager
def late_compiler() -> Iterator[None]:
    """While active, torch's functions in Python run without the compiler, if it is not loaded.

    Example:
        >>> with late_compiler():
        ...     optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    """
    with ExitStack() as stack:
        for late in _all_late():
            if late.__name__ not in sys.modules:
                late.put()
                stack.callback(late.remove)
        yield
