"""Parts of a lowering that XLA fuses with nothing around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
R = TypeVar("R")


def compile_apart(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function whose arguments and results XLA must make, once, in memory.

    XLA:CPU fuses a chain of elementwise work into each of its readers, which then all run the
    chain again, reductions without vector instructions. An optimization barrier does not help:
    it is gone before fusion. A call that is not inlined stays.

    Args:
        fn: A pure function of arrays; the same object at every call is traced once. What it calls
            through ``jax.jit`` is a call of its own, too, but under :func:`inlined`.
        args, kwargs: Its arguments.

    Returns:
        What it returns.
    """
    with set_xla_metadata(inlineable="false"):
        return jax.jit(fn)(*args, **kwargs)


@contextmanager
def inlined() -> Iterator[None]:
    """While active, XLA inlines calls: those inside of a part that is compiled apart, too."""
    with set_xla_metadata(inlineable=None):
        yield


def _same(array: jax.Array) -> jax.Array:
    return array


def in_memory(array: jax.Array) -> jax.Array:
    """The same array, which XLA makes in memory here: a call of nothing that is not inlined.

    What makes the array and what reads it are then two kernels. The call copies nothing. jax drops
    it where it derives a gradient by itself: use it in functions that have a gradient of their own.

    Args:
        array: The array.

    Example:
        >>> import jax.numpy as jnp
        >>> float(in_memory(jnp.float32(2)))
        2.0
    """
    return compile_apart(_same, array)
