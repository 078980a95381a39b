"""Methods of a façade that are those of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

__all__ = ["callable_on_class", "method_of"]

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


class _OnClassToo:
    """A method that works on an instance, and on the class for its instance of the process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # pyright: ignore[reportArgumentType]  # of a descriptor

    def __get__(self, instance: Any, owner: type) -> Any:
        target = cast("Any", owner).of_process if instance is None else instance
        return self._method.__get__(target, owner)


F = TypeVar("F", bound=Callable[..., Any])


def callable_on_class(method: F) -> F:
    """A method that can be called on the class as well, as SambaFlow's static ones are.

    Args:
        method: The method. On the class it works on ``of_process``, an attribute of the class.

    Example:
        >>> class Session:
        ...     of_process = None
        ...     def __init__(self, name): self.name = name
        ...     @callable_on_class
        ...     def reset(self): return f"reset {self.name}"
        >>> Session.of_process = Session("the first")
        >>> Session.reset(), Session("another").reset()
        ('reset the first', 'reset another')
    """
    return cast("F", _OnClassToo(method))
