"""Nodes of one form are traced once in a plan, however many there are.

Equal layers repeat the same operations over other values. What is traced the first time is a
function of the plan's module; the other nodes of its form are calls of it, which XLA inlines before
it does anything else. The executable is the same, and jax's share of compiling grows with what
differs between layers, not with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.core

_functions: ContextVar[dict[Any, Callable[..., Any]] | None] = ContextVar(
    "functions by form", default=None
)


@contextmanager
def shared_forms() -> Generator[None, None, None]:
    """While active, :func:`call_once_traced` keeps what it has traced."""
    token = _functions.set({})
    try:
        yield
    finally:
        _functions.reset(token)


def call_once_traced(
    key: tuple[Any, ...], function: Callable[..., Any], arrays: Sequence[jax.Array], name: str
) -> Any:
    """Call a function that was perhaps traced before.

    Args:
        key: All that its results depend on, besides ``arrays``.
        function: A pure function of arrays.
        arrays: Its arguments.
        name: What the function is called in the module.

    Returns:
        What the function returns.

    Example:
        >>> import jax.numpy as jnp
        >>> traced = []
        >>> def double(x):
        ...     traced.append(x.shape)
        ...     return 2 * x
        >>> def twice(x):
        ...     with shared_forms():
        ...         x = call_once_traced(("double",), double, [x], "double")
        ...         return call_once_traced(("double",), double, [x], "double")
        >>> float(jax.jit(twice)(jnp.float32(1))), traced
        (4.0, [()])
    """
    functions = _functions.get()
    # Outside of a trace there is nothing to share, and what is known while tracing stays known.
    if functions is None or not all(isinstance(a, jax.core.Tracer) for a in arrays):
        return function(*arrays)
    if key not in functions:

        def named(*args: jax.Array) -> Any:
            return function(*args)

        named.__name__ = name
        functions[key] = jax.jit(named)  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
    return functions[key](*arrays)
