"""Hand-written gradients, with the types of the function kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def with_gradient(
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., tuple[Any, ...]],
    *,
    static: tuple[int, ...] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function its own reverse-mode rule (``jax.custom_vjp`` as a typed decorator).

    Args:
        forward: Takes what the function takes; returns its result and what to save.
        backward: Takes the static arguments, what was saved and the cotangent; returns one
            cotangent (or None) per argument that is not static.
        static: Positions of arguments that are plain hashable values.

    Returns:
        A decorator.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        rule = jax.custom_vjp(fn, nondiff_argnums=static)
        rule.defvjp(forward, backward)
        return rule

    return decorate
