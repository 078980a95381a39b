"""Lowerings: reductions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.ops._promote import is_float, wide_type
from emulator.ops._reduction import (
    extreme_index,
    kept_shape,
    normalize_axes,
    normalize_axis,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from emulator.ops.registry import op
from pef_schema.program import DType

Dims = int | tuple[int, ...] | None
Axes = tuple[int, ...]


def _accumulated(dtype: DType | None, x: jax.Array) -> np.dtype:
    """The dtype of a sum: as asked, else int64 for integers, else the array's own."""
    if dtype is not None:
        return TO_NUMPY[dtype]
    return np.dtype(x.dtype) if is_float(x.dtype) else np.dtype(np.int64)


def _shaped(y: jax.Array, x: jax.Array, axes: Axes, keepdim: bool) -> jax.Array:
    return lax.reshape(y, kept_shape(x.shape, axes)) if keepdim else y


@op("aten.sum.default", "aten.sum.dim_IntList", reads=())
def sum_(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Sum; integers and booleans give int64; half types are summed in float32."""
    axes, out = normalize_axes(dim, x.ndim), _accumulated(dtype, x)
    total = reduce_sum(x.astype(wide_type(out)), axes).astype(out)
    return _shaped(total, x, axes, keepdim)


@op("aten.mean.default", "aten.mean.dim", reads=())
def mean(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> jax.Array:
    """Arithmetic mean."""
    axes, out = normalize_axes(dim, x.ndim), _accumulated(dtype, x)
    count = math.prod(x.shape[a] for a in axes)
    total = reduce_sum(x.astype(wide_type(out)), axes)
    return _shaped((total / np.asarray(count, total.dtype)).astype(out), x, axes, keepdim)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _extreme(x: jax.Array, axes: Axes, largest: bool) -> jax.Array:
    return (reduce_max if largest else reduce_min)(x, axes)


def _extreme_forward(x: jax.Array, axes: Axes, largest: bool) -> tuple[jax.Array, Any]:
    value = _extreme(x, axes, largest)
    return value, (x, value)


def _extreme_backward(axes: Axes, largest: bool, saved: Any, g: jax.Array) -> tuple[jax.Array]:
    """Ties share the gradient evenly (torch's ``scale_grad_by_count``)."""
    del largest
    x, value = saved
    kept, wide = kept_shape(x.shape, axes), wide_type(x.dtype)
    hit = (x == value.reshape(kept)).astype(wide)
    share = g.reshape(kept).astype(wide) / reduce_sum(hit, axes).reshape(kept)
    return ((hit * share).astype(x.dtype),)


_extreme.defvjp(_extreme_forward, _extreme_backward)


@op("aten.amax.default", "aten.max.default", reads=(0,))
def amax(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Maximum; NaN wins; ties share the gradient."""
    axes = normalize_axes(dim, x.ndim)
    return _shaped(_extreme(x, axes, True), x, axes, keepdim)


@op("aten.amin.default", "aten.min.default", reads=(0,))
def amin(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Minimum; NaN wins; ties share the gradient."""
    axes = normalize_axes(dim, x.ndim)
    return _shaped(_extreme(x, axes, False), x, axes, keepdim)


@op("aten.aminmax.default", reads=(0,))
def aminmax(
    x: jax.Array, *, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Minimum and maximum together."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _chosen(x: jax.Array, axis: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    return extreme_index(x, axis, largest=largest)


def _chosen_forward(x: jax.Array, axis: int, largest: bool) -> tuple[Any, Any]:
    value, index = _chosen(x, axis, largest)
    return (value, index), (index, x)


def _chosen_backward(axis: int, largest: bool, saved: Any, g: Any) -> tuple[jax.Array]:
    del largest
    index, x = saved
    place = lax.broadcasted_iota(index.dtype, x.shape, axis)
    hit = place == jnp.expand_dims(index, axis)
    return (jnp.where(hit, jnp.expand_dims(g[0], axis), 0),)


_chosen.defvjp(_chosen_forward, _chosen_backward)


def _along(x: jax.Array, dim: int, keepdim: bool, largest: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    value, index = _chosen(x, axis, largest)
    return _shaped(value, x, (axis,), keepdim), _shaped(index, x, (axis,), keepdim)


@op("aten.max.dim", reads=(0,))
def max_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """Maximum along a dimension and the index of the first; the index gets the gradient."""
    return _along(x, dim, keepdim, True)


@op("aten.min.dim", reads=(0,))
def min_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """Minimum along a dimension and the index of the first; the index gets the gradient."""
    return _along(x, dim, keepdim, False)


def _arg(x: jax.Array, dim: int | None, keepdim: bool, largest: bool) -> jax.Array:
    if dim is not None:
        return _along(x, dim, keepdim, largest)[1]
    index = _along(x.reshape(-1), 0, False, largest)[1]
    return index.reshape((1,) * x.ndim) if keepdim else index


@op("aten.argmax.default", reads=(), differentiable=False)
def argmax(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    """Index of the first maximum; NaN counts as largest."""
    return _arg(x, dim, keepdim, True)


@op("aten.argmin.default", reads=(), differentiable=False)
def argmin(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    """Index of the first minimum; NaN counts as smallest."""
    return _arg(x, dim, keepdim, False)


@op(
    *("aten.any.default", "aten.any.dim", "aten.any.dims"),
    reads=(),
    differentiable=False,
)
def any_(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Whether any element is not zero; uint8 stays uint8."""
    axes = normalize_axes(dim, x.ndim)
    found = jnp.any(x.astype(bool), axis=axes)
    return _shaped(_truth(found, x), x, axes, keepdim)


@op(
    *("aten.all.default", "aten.all.dim", "aten.all.dims"),
    reads=(),
    differentiable=False,
)
def all_(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Whether no element is zero; uint8 stays uint8."""
    axes = normalize_axes(dim, x.ndim)
    found = jnp.all(x.astype(bool), axis=axes)
    return _shaped(_truth(found, x), x, axes, keepdim)


def _truth(found: jax.Array, x: jax.Array) -> jax.Array:
    return found.astype(np.uint8) if x.dtype == np.uint8 else found
