"""Torch's compiler, loaded where something of it is used, and not where it is only switched off.

Optimizers of torch and its kernels in Python are marked as nothing that ``torch.compile`` looks
into. Their first call loads the compiler for that, 800 modules in two seconds, although it does not
run (torch 2.13). Nothing has to be switched off before it is loaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

__all__ = ["late_compiler"]

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Where torch keeps the form of a function in which the compiler is switched off."""


class _Late(ModuleType):
    """Stands for the compiler until more of it is used than to switch it off."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.switched_off: list[Callable[..., Any]] = []

    def disable(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """The function itself: there is nothing that would look into it."""
        self.switched_off.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        self.remove()
        return getattr(importlib.import_module(_COMPILER), name)

    def remove(self) -> None:
        """Let the next import load the compiler; functions are asked for anew then."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        if vars(torch).get("_dynamo") is self:
            del torch._dynamo
        while self.switched_off:
            vars(self.switched_off.pop()).pop(_MARK, None)


@contextmanager
def late_compiler() -> Iterator[None]:
    """While active, torch's functions in Python run without the compiler, if it is not loaded.

    Example:
        >>> with late_compiler():
        ...     optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    """
    if _COMPILER in sys.modules:
        yield
        return
    late = _Late()
    sys.modules[_COMPILER] = late
    torch._dynamo = late
    try:
        yield
    finally:
        late.remove()
