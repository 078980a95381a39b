"""Lowerings: reductions, and cumulative operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import compute_dtype
from emulator.op_facts.facts import Fusing
from emulator.ops import _slopes as slopes
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import DEFAULT_FLOAT, is_float, is_inexact
from emulator.ops._reduction import (
    extreme_index,
    kept_shape,
    normalize_axes,
    normalize_axis,
    reduce_max,
    reduce_min,
    reduce_sum,
    shaped,
)
from emulator.ops._reshape import reshaped
from emulator.ops.index import gather
from emulator.ops.registry import op
from pef_schema.program import DType

Dims = int | tuple[int, ...] | None
Axes = tuple[int, ...]


_reduction = partial(op, flops=("input", 0, 1), fusing=Fusing.REDUCES)


def _sum_dtype(dtype: DType | None, x: jax.Array) -> np.dtype:
    """The dtype of a sum: as asked, else int64 for integers, else the array's own."""
    if dtype is not None:
        return TO_NUMPY[dtype]
    return np.dtype(x.dtype) if is_inexact(x.dtype) else np.dtype(np.int64)


@_reduction(
    *("aten.sum.default", "aten.sum.dim_IntList"), reads=(), complex=True, ranges=("total",)
)
def sum_(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Sum; integers and booleans give int64; half types are summed in float32."""
    axes, out = normalize_axes(dim, x.ndim), _sum_dtype(dtype, x)
    total = reduce_sum(x.astype(compute_dtype(out)), axes).astype(out)
    return shaped(total, x, axes, keepdim)


@_reduction(*("aten.mean.default", "aten.mean.dim"), reads=(), complex=True)
def mean(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Arithmetic mean."""
    axes, out = normalize_axes(dim, x.ndim), _sum_dtype(dtype, x)
    count = math.prod(x.shape[a] for a in axes)
    total = reduce_sum(x.astype(compute_dtype(out)), axes)
    return shaped((total / np.asarray(count, total.dtype)).astype(out), x, axes, keepdim)


@op("aten.nansum.default", reads=(0,), complex=True, flops=("input", 0, 2))
def nansum(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Sum that takes NaN as zero."""
    return sum_(slopes.without_nan(x) if is_float(x.dtype) else x, dim, keepdim, dtype=dtype)


@op("aten.nanmean.default", reads=(0,), complex=True, flops=("input", 0, 2))
def nanmean(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Mean of the elements that are not NaN."""
    count = sum_((x == x).astype(np.int32), dim, keepdim)
    total = nansum(x, dim, keepdim, dtype=dtype)
    return total / count.astype(total.dtype)


@_reduction("aten.prod.default", "aten.prod.dim_int", reads=(0,), complex=True)
def prod(
    x: jax.Array, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Product; integers and booleans give int64; its gradient is right beside zeros."""
    axes, out = normalize_axes(dim, x.ndim), _sum_dtype(dtype, x)
    product = jnp.prod(x.astype(compute_dtype(out)), axis=axes, dtype=compute_dtype(out))
    return shaped(product.astype(out), x, axes, keepdim)


@op(
    *("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList"),
    differentiable=False,
    complex=True,
    flops=("input", 0, 1),
)
def count_nonzero(x: jax.Array, dim: Dims = None) -> jax.Array:
    """How many elements are not zero."""
    return reduce_sum(x.astype(bool).astype(np.int64), normalize_axes(dim, x.ndim))


@op("aten.trace.default", reads=(), complex=True, flops=("input", 0, 1))
def trace(x: jax.Array) -> jax.Array:
    """Sum of the diagonal of a matrix."""
    return sum_(jnp.diagonal(x))


@op("aten.sum_to_size.default", reads=(), complex=True, flops=("input", 0, 1))
def sum_to_size(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Sum over what broadcasting ``size`` to the shape of ``x`` would add."""
    lead = x.ndim - len(size)
    axes = tuple(a for a in range(x.ndim) if a < lead or (size[a - lead] == 1 and x.shape[a] != 1))
    if axes and not is_inexact(x.dtype):
        x = x.astype(np.int64)
    return reshaped(reduce_sum(x, axes), size)


def _extreme_backward(
    axes: Axes, largest: bool, nan_hits: bool, saved: Any, g: jax.Array
) -> tuple[jax.Array]:
    """Ties share the gradient evenly.

    Under a NaN result torch shares it among the NaNs in a full reduction
    (``evenly_distribute_backward``) and gives NaN along dimensions
    (``scale_grad_by_count``).
    """
    del largest
    x, value = saved
    shape, wide = kept_shape(x.shape, axes), compute_dtype(x.dtype)
    spread = value.reshape(shape)
    hit = (x == spread) | (x != x) if nan_hits else x == spread
    count = reduce_sum(hit.astype(wide), axes).reshape(shape)
    share = g.reshape(shape).astype(wide) / count
    grad = jnp.where(hit, share, 0)
    if not nan_hits:
        grad = jnp.where(spread != spread, np.nan, grad)
    return (grad.astype(x.dtype),)


@with_gradient(_extreme_backward, saves=lambda value, x, *_: (x, value), static=(1, 2, 3))
def _extreme(x: jax.Array, axes: Axes, largest: bool, nan_hits: bool) -> jax.Array:
    return (reduce_max if largest else reduce_min)(x, axes)


def _extreme_along(
    x: jax.Array, dim: Dims, keepdim: bool, *, largest: bool, nan_hits: bool
) -> jax.Array:
    axes = normalize_axes(dim, x.ndim)
    return shaped(_extreme(x, axes, largest, nan_hits), x, axes, keepdim)


@op("aten.aminmax.default", reads=(0,), flops=("input", 0, 2))
def aminmax(
    x: jax.Array, *, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Minimum and maximum together."""
    least = _extreme_along(x, dim, keepdim, largest=False, nan_hits=False)
    return least, _extreme_along(x, dim, keepdim, largest=True, nan_hits=False)


def _chosen_backward(axis: int, largest: bool, saved: Any, g: Any) -> tuple[jax.Array]:
    del largest
    index, x = saved
    place = lax.broadcasted_iota(index.dtype, x.shape, axis)
    hit = place == jnp.expand_dims(index, axis)
    return (jnp.where(hit, jnp.expand_dims(g[0], axis), 0),)


@with_gradient(_chosen_backward, saves=lambda pair, x, *_: (pair[1], x), static=(1, 2))
def _chosen(x: jax.Array, axis: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    return extreme_index(x, axis, largest=largest)


def _along(x: jax.Array, dim: int, keepdim: bool, largest: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    value, index = _chosen(x, axis, largest)
    return shaped(value, x, (axis,), keepdim), shaped(index, x, (axis,), keepdim)


def _arg(x: jax.Array, dim: int | None, keepdim: bool, largest: bool) -> jax.Array:
    if dim is not None:
        return _along(x, dim, keepdim, largest)[1]
    index = _along(x.reshape(-1), 0, False, largest)[1]
    return index.reshape((1,) * x.ndim) if keepdim else index


def _register_extremes(name: str, largest: bool) -> None:
    """Maxima or minima: of all, along dimensions, with their places, and the places alone.

    NaN wins. Ties share the gradient, except with indices, where one element gets all of it.
    """

    @_reduction(f"aten.{name}.default", reads=(0,), ranges=("first",))
    def of_all(x: jax.Array) -> jax.Array:
        return _extreme_along(x, None, False, largest=largest, nan_hits=True)

    @_reduction(f"aten.a{name}.default", reads=(0,), ranges=("first",))
    def along(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        return _extreme_along(x, dim, keepdim, largest=largest, nan_hits=False)

    @_reduction(f"aten.{name}.dim", reads=(0,), ranges=("extremes",))
    def with_place(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        return _along(x, dim, keepdim, largest)

    @_reduction(f"aten.arg{name}.default", differentiable=False, ranges=("place", 0))
    def place(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        return _arg(x, dim, keepdim, largest)


_register_extremes("max", True)
_register_extremes("min", False)


def _register_truth(name: str, function: Callable[..., jax.Array]) -> None:
    """Whether any element, or each, is not zero; uint8 stays uint8."""

    @_reduction(
        *(f"aten.{name}.{kind}" for kind in ("default", "dim", "dims")),
        differentiable=False,
        complex=True,
    )
    @op(f"aten._is_{name}_true.default", differentiable=False, flops=("input", 0, 1))
    def lower(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        axes = normalize_axes(dim, x.ndim)
        result = function(x.astype(bool), axis=axes)
        return shaped(result.astype(np.uint8) if x.dtype == np.uint8 else result, x, axes, keepdim)


_register_truth("any", jnp.any)
_register_truth("all", jnp.all)


@op("aten.cumsum.default", reads=(), complex=True, flops=("input", 0, 1), ranges=("total",))
def cumsum(x: jax.Array, dim: int, *, dtype: DType | None = None) -> jax.Array:
    """Running sum; integers give int64."""
    out = _sum_dtype(dtype, x)
    if x.ndim == 0:
        return x.astype(out)
    return lax.cumsum(x.astype(compute_dtype(out)), normalize_axis(dim, x.ndim)).astype(out)


@op("aten.cumprod.default", reads=(0,), complex=True, flops=("input", 0, 1))
def cumprod(x: jax.Array, dim: int, *, dtype: DType | None = None) -> jax.Array:
    """Running product; integers give int64; its gradient is right beside zeros."""
    out = _sum_dtype(dtype, x)
    if x.ndim == 0:
        return x.astype(out)
    return lax.cumprod(x.astype(compute_dtype(out)), normalize_axis(dim, x.ndim)).astype(out)


@op("aten.logcumsumexp.default", "aten._logcumsumexp.default", reads=(0,), flops=("input", 0, 3))
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    """``log(cumsum(exp(x)))`` without overflow; integers give float32."""
    out = np.dtype(x.dtype) if is_inexact(x.dtype) else DEFAULT_FLOAT
    if x.ndim == 0:
        return x.astype(out)
    wide = x.astype(compute_dtype(out))
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
    return jnp.diff(x, min(n, x.shape[axis]), axis)
