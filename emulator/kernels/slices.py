"""Slices of an axis in the forms that XLA:CPU runs with vectors and its partitioner gets right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from emulator.kernels.unfused import in_memory


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


Combine = Callable[[jax.Array, jax.Array], jax.Array]

GROUP = 16
"""Slices of an axis that are combined in one pass: as many loads as a loop has registers for."""


def pairwise(parts: Sequence[jax.Array], combine: Combine) -> jax.Array:
    """Combine arrays of one shape, neighbours first."""
    while len(parts) > 1:
        pairs = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + list(parts[len(pairs) * 2 :])
    return parts[0]


def fold_middle(x: jax.Array, combine: Combine) -> jax.Array:
    """``(L, N, T)`` combined to ``(L, T)``: a group of neighbours in a pass until one is left."""
    tails: list[jax.Array] = []
    while (size := x.shape[1]) > 1:
        group = min(GROUP, size)
        whole = size - size % group
        tails += [lax.slice_in_dim(x, i, i + 1, axis=1) for i in range(whole, size)]
        parts = [strided(x, i, whole, group, 1) for i in range(group)]
        # Else XLA makes one loop of two passes, with the loads of both.
        x = in_memory(pairwise(parts, combine))
    return pairwise([x, *tails], combine)[:, 0]
