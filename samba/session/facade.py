"""Methods of a façade that are those of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["method_of"]

P = ParamSpec("P")
R = TypeVar("R")


def method_of(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """A method that calls the same method of a part, with its signature and its docstring.

    Args:
        part: Attribute under which the façade holds the part.
        method: The part's method.

    Example:
        >>> class Engine:
        ...     def start(self, gently=True):
        ...         return f"started {'gently' if gently else 'hard'}"
        >>> class Car:
        ...     def __init__(self):
        ...         self.engine = Engine()
        ...     start = method_of("engine", Engine.start)
        >>> Car().start(gently=False)
        'started hard'
    """

    @functools.wraps(method)
    def forwarded(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, part), *args, **kwargs)

    return forwarded
