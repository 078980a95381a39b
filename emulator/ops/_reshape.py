"""Another shape of an array, for sizes that an op is told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax import lax


def reshaped(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """The same elements in another shape.

    ``lax.reshape`` traces whatever sizes it is given; what does not fit is then found when the
    whole plan is lowered, and nobody knows whose it was.

    Args:
        x: The array.
        sizes: Its new shape.

    Returns:
        An array of that shape.

    Raises:
        ValueError: If the shape has another number of elements.

    Example:
        >>> import jax.numpy as jnp
        >>> reshaped(jnp.zeros((2, 3)), (3, 2)).shape
        (3, 2)
    """
    shape = tuple(sizes)
    if math.prod(shape) != x.size or min(shape, default=0) < 0:
        raise ValueError(f"shape {x.shape} has {x.size} elements, {shape} has {math.prod(shape)}")
    return lax.reshape(x, shape)


def merged(x: jax.Array, keep: int) -> jax.Array:
    """All axes after the first ``keep`` as one, whose size is known where an array is empty, too.

    Args:
        x: The array.
        keep: How many axes stay.

    Example:
        >>> import jax.numpy as jnp
        >>> merged(jnp.zeros((0, 2, 3)), 1).shape
        (0, 6)
    """
    return x.reshape(*x.shape[:keep], math.prod(x.shape[keep:]))


def rows_of(x: jax.Array) -> jax.Array:
    """All axes before the last as one.

    Args:
        x: An array with an axis.

    Example:
        >>> import jax.numpy as jnp
        >>> rows_of(jnp.zeros((2, 0, 3))).shape
        (0, 3)
    """
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
