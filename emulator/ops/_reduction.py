"""Reductions as torch defines them, shaped so that XLA:CPU runs them right and fast.

Two things in XLA:CPU call for care. Its own ``min`` and ``max`` reductions drop NaN
on some code paths. And a reduction over a leading axis whose kept part is large
(tens of thousands of elements) runs up to a hundred times slower than folding the axis
in halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_CHUNK = 64
"""Rows that are added one after the other."""
_LONG_ROW = 32768
"""Elements after the reduced axes from which XLA:CPU's own loop is slow (measured)."""


def normalize_axis(axis: int, ndim: int) -> int:
    """A non-negative axis; a 0-d array counts as one axis, as in torch."""
    return axis % max(ndim, 1)


def normalize_axes(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Sorted, non-negative reduction axes; ``None`` and ``()`` mean all.

    Args:
        dim: torch's ``dim`` argument.
        ndim: Number of dimensions of the array.

    Returns:
        The axes.

    Example:
        >>> normalize_axes((-1, 0), 3)
        (0, 2)
    """
    if ndim == 0:
        return ()
    if dim is None or dim == ():
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(sorted(d % ndim for d in dims))


def kept_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of a reduction's result under ``keepdim=True``."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _fold(x: jax.Array, axis: int, combine: Callable[..., jax.Array]) -> jax.Array:
    """Reduce one axis by combining its two halves until one entry is left."""
    while x.shape[axis] > 1:
        size = x.shape[axis]
        half = size // 2
        low = lax.slice_in_dim(x, 0, half, axis=axis)
        high = lax.slice_in_dim(x, half, 2 * half, axis=axis)
        rest = lax.slice_in_dim(x, 2 * half, size, axis=axis)
        x = combine(low, high)
        if size % 2:
            x = lax.concatenate([x, rest], axis)
    return lax.squeeze(x, (axis,))


def sum_rows(x: jax.Array) -> jax.Array:
    """Sum of the rows of a matrix, a few at a time.

    One accumulator for thousands of rows loses digits, where torch adds in a cascade
    (``aten/src/ATen/native/cpu/SumKernel.cpp``). The barrier keeps XLA from making one reduction
    of the two.

    Args:
        x: Matrix ``(R, C)``.

    Returns:
        Vector ``(C,)``.

    Example:
        >>> import jax.numpy as jnp
        >>> [float(v) for v in sum_rows(jnp.ones((1000, 2)))]
        [1000.0, 1000.0]
    """
    while x.shape[0] > _CHUNK:
        missing = -x.shape[0] % _CHUNK
        if missing:
            x = lax.pad(x, jnp.zeros((), x.dtype), ((0, missing, 0), (0, 0, 0)))
        x = lax.optimization_barrier(jnp.sum(x.reshape(-1, _CHUNK, x.shape[1]), axis=1))
    return jnp.sum(x, axis=0)


def _is_slow(shape: Sequence[int], axes: tuple[int, ...]) -> bool:
    """Whether the axes are adjacent and followed by a long row."""
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        return False
    return math.prod(shape[axes[-1] + 1 :]) >= _LONG_ROW and math.prod(shape) > 0


def _merged(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Merge adjacent axes into the first of them."""
    return x.reshape((*x.shape[: axes[0]], -1, *x.shape[axes[-1] + 1 :]))


def reduce_sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Sum over axes in the array's own dtype; half types are summed in float32.

    Args:
        x: Any array of numbers.
        axes: Sorted, non-negative axes.

    Returns:
        The sum without the axes.
    """
    if _is_slow(x.shape, axes):
        dtype = x.dtype
        wide = jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype
        return _fold(_merged(x.astype(wide), axes), axes[0], lax.add).astype(dtype)
    return jnp.sum(x, axis=axes, dtype=x.dtype)


def lowest(dtype: Any) -> np.ndarray:
    """The smallest value of a dtype (``-inf`` for floats): the start of a maximum."""
    if dtype == np.bool_:
        return np.asarray(False)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).min, dtype)


def highest(dtype: Any) -> np.ndarray:
    """The largest value of a dtype (``inf`` for floats): the start of a minimum."""
    if dtype == np.bool_:
        return np.asarray(True)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).max, dtype)


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.select((a > b) | (a != a), a, b)


def _smaller(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.select((a < b) | (a != a), a, b)


def reduce_max(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Maximum over axes; NaN wins. Not differentiable: callers define the gradient."""
    return lax.reduce(x, lowest(x.dtype), _larger, axes)


def reduce_min(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Minimum over axes; NaN wins. Not differentiable: callers define the gradient."""
    return lax.reduce(x, highest(x.dtype), _smaller, axes)


def first_match(hit: jax.Array, axis: int) -> jax.Array:
    """Index of the first true entry along an axis, as int64."""
    index = lax.broadcasted_iota(jnp.int32, hit.shape, axis)
    found = jnp.where(hit, index, np.int32(hit.shape[axis]))
    return reduce_min(found, (axis,)).astype(jnp.int64)


def extreme_index(x: jax.Array, axis: int, *, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The extreme values along an axis and the index of the first of them.

    Two plain reductions: XLA:CPU's own ``argmax`` is an order of magnitude slower.

    Args:
        x: An array of at least one dimension; the axis is not empty.
        axis: Non-negative axis.
        largest: Maximum rather than minimum.

    Returns:
        Values and int64 indices, both without the axis. The first NaN wins.
    """
    value = (reduce_max if largest else reduce_min)(x, (axis,))
    spread = jnp.expand_dims(value, axis)
    return value, first_match((x == spread) | (x != x), axis)
