"""Every n-th element of an axis, in a form that XLA's partitioner gets right."""

from __future__ import annotations

import jax
from jax import lax

__all__ = ["strided"]


def strided(x: jax.Array, start: int, stop: int, stride: int, axis: int) -> jax.Array:
    """Elements of an axis, ``stride`` apart.

    One element alone is taken without a stride: with one, XLA's partitioner (jaxlib 0.10) takes
    another element of an axis that is divided among devices.

    Args:
        x: The array.
        start, stop: As of a slice, within the axis.
        stride: 1 or more.
        axis: The axis.

    Returns:
        An array with the axis shorter.

    Example:
        >>> import jax.numpy as jnp
        >>> strided(jnp.arange(8), 1, 8, 3, 0).tolist(), strided(jnp.arange(8), 7, 8, 8, 0).tolist()
        ([1, 4, 7], [7])
    """
    if stop - start <= stride:
        return lax.slice_in_dim(x, start, min(start + 1, stop), axis=axis)
    return lax.slice_in_dim(x, start, stop, stride, axis)
