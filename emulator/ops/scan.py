"""Lowerings: cumulative operations."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.ops._promote import DEFAULT_FLOAT, is_inexact, wide_type
from emulator.ops._reduction import normalize_axis
from emulator.ops.index import gather
from emulator.ops.registry import op
from pef_schema.program import DType


def _accumulated(dtype: DType | None, x: jax.Array) -> np.dtype:
    if dtype is not None:
        return TO_NUMPY[dtype]
    return np.dtype(x.dtype) if is_inexact(x.dtype) else np.dtype(np.int64)


@op("aten.cumsum.default", reads=(), complex=True, flops=("input", 0, 1), ranges=("total",))
def cumsum(x: jax.Array, dim: int, *, dtype: DType | None = None) -> jax.Array:
    """Running sum; integers give int64."""
    out = _accumulated(dtype, x)
    if x.ndim == 0:
        return x.astype(out)
    return lax.cumsum(x.astype(wide_type(out)), normalize_axis(dim, x.ndim)).astype(out)


@op("aten.cumprod.default", reads=(0,), complex=True, flops=("input", 0, 1))
def cumprod(x: jax.Array, dim: int, *, dtype: DType | None = None) -> jax.Array:
    """Running product; integers give int64; its gradient is right beside zeros."""
    out = _accumulated(dtype, x)
    if x.ndim == 0:
        return x.astype(out)
    return lax.cumprod(x.astype(wide_type(out)), normalize_axis(dim, x.ndim)).astype(out)


@op("aten.logcumsumexp.default", "aten._logcumsumexp.default", reads=(0,), flops=("input", 0, 3))
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    """``log(cumsum(exp(x)))`` without overflow; integers give float32."""
    out = np.dtype(x.dtype) if is_inexact(x.dtype) else DEFAULT_FLOAT
    if x.ndim == 0:
        return x.astype(out)
    wide = x.astype(wide_type(out))
    return lax.cumlogsumexp(wide, normalize_axis(dim, x.ndim)).astype(out)


@op("aten.cummax.default", reads=(0,), flops=("input", 0, 1))
def cummax(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Running maximum and the index of its last occurrence; NaN wins and stays."""
    return _running_extreme(x, dim, True)


@op("aten.cummin.default", reads=(0,), flops=("input", 0, 1))
def cummin(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Running minimum and the index of its last occurrence; NaN wins and stays."""
    return _running_extreme(x, dim, False)


def _running_extreme(x: jax.Array, dim: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    place = lax.broadcasted_iota(np.int64, x.shape, axis)

    def later(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
        better = b[0] >= a[0] if largest else b[0] <= a[0]
        take = better | (b[0] != b[0])
        take &= ~((a[0] != a[0]) & (b[0] == b[0]))
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    scan = partial(lax.associative_scan, later, axis=axis)
    index = lax.stop_gradient(scan((lax.stop_gradient(x), place))[1])
    return gather(x, axis, index), index


@op("aten.diff.default", reads=(), complex=True, flops=("input", 0, 1))
def diff(
    x: jax.Array,
    n: int = 1,
    dim: int = -1,
    prepend: jax.Array | None = None,
    append: jax.Array | None = None,
) -> jax.Array:
    """The ``n``-th difference of neighbours; of booleans, whether they differ."""
    if n == 0:
        return x  # torch adds nothing to it then
    axis = normalize_axis(dim, x.ndim)
    parts = [part for part in (prepend, x, append) if part is not None]
    x = lax.concatenate(parts, axis)
    for _ in range(min(n, x.shape[axis])):
        high = lax.slice_in_dim(x, 1, None, axis=axis)
        low = lax.slice_in_dim(x, 0, x.shape[axis] - 1, axis=axis)
        x = high ^ low if x.dtype == np.bool_ else high - low
    return x
