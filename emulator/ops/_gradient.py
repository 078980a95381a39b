"""Hand-written gradients, with the types of the function kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")

Saves = Callable[..., Any]
"""From a function's result and all its arguments to what its gradient reads."""


def saves_result(result: Any, *args: Any) -> Any:
    """What ``saves`` is where the gradient reads the result alone."""
    del args
    return result


def with_gradient(
    backward: Callable[..., tuple[Any, ...]],
    *,
    saves: Saves | None = None,
    forward: Callable[..., tuple[Any, Any]] | None = None,
    static: tuple[int, ...] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function its own reverse-mode rule (``jax.custom_vjp`` as a typed decorator).

    Args:
        backward: Takes the static arguments, what was saved and the cotangent; returns one
            cotangent (or None) per argument that is not static.
        saves: Takes the result and all arguments; returns what is saved. By default that is the
            argument that is not static, or a tuple of them if there are several.
        forward: For a function that computes something else where a gradient is wanted: takes what
            the function takes; returns its result and what is saved.
        static: Positions of arguments that are plain hashable values.

    Returns:
        A decorator.

    Example:
        >>> @with_gradient(lambda x, g: (g * 3 * x,))
        ... def square(x: jax.Array) -> jax.Array:
        ...     return x * x
        >>> float(square(2.0)), float(jax.grad(square)(2.0))
        (4.0, 6.0)
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        def saving(*args: Any) -> tuple[Any, Any]:
            result = fn(*args)  # pyright: ignore[reportCallIssue]  # P has no types here
            if saves is not None:
                return result, saves(result, *args)
            residuals = tuple(x for i, x in enumerate(args) if i not in static)
            return result, residuals[0] if len(residuals) == 1 else residuals

        rule = jax.custom_vjp(fn, nondiff_argnums=static)
        rule.defvjp(forward or saving, backward)
        return rule

    return decorate
