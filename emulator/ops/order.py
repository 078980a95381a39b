"""Lowerings: sorting, selecting by rank, and searching."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._gradient import with_gradient
from emulator.ops._promote import is_float, is_number, result_type
from emulator.ops._reduction import first_match, normalize_axis
from emulator.ops._reshape import reshaped, rows_of
from emulator.ops.index import gather
from emulator.ops.registry import op

Pair = tuple[jax.Array, jax.Array]


def sorted_indices(x: jax.Array, axis: int, *, descending: bool) -> jax.Array:
    """Stable sorting order along an axis; NaN counts as largest.

    Args:
        x: An array of at least one dimension.
        axis: Non-negative axis.
        descending: Largest first; equal elements still keep their order.

    Returns:
        int64 indices in the shape of ``x``.
    """
    key = lax.stop_gradient(x)
    place = lax.broadcasted_iota(np.int64, x.shape, axis)
    if x.dtype == np.bool_:
        key = key.astype(np.uint8)
    if descending:  # sort the reversed array upwards, then read it backwards
        key, place = lax.rev(key, (axis,)), lax.rev(place, (axis,))
    order = lax.sort((key, place), dimension=axis, is_stable=True, num_keys=1)[1]
    return lax.rev(order, (axis,)) if descending else order


def _sort(x: jax.Array, dim: int, descending: bool) -> Pair:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    order = sorted_indices(x, axis, descending=descending)
    return gather(x, axis, order), order


@op("aten.sort.default", "aten.sort.stable", reads=(0,), counted=False, ranges=("extremes",))
def sort(
    x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Pair:
    """Sorted values and their indices; equal elements keep their order."""
    del stable
    return _sort(x, dim, descending)


@op("aten.msort.default", reads=(0,), counted=False)
def msort(x: jax.Array) -> jax.Array:
    """Values sorted along the first dimension."""
    return _sort(x, 0, False)[0]


@op(
    *("aten.argsort.default", "aten.argsort.stable"),
    differentiable=False,
    counted=False,
    ranges=("place", 0),
)
def argsort(
    x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> jax.Array:
    """Indices that sort a tensor; equal elements keep their order."""
    del stable
    return _sort(x, dim, descending)[1]


@op("aten.topk.default", reads=(0,), counted=False, ranges=("extremes",))
def topk(
    x: jax.Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Pair:
    """The ``k`` largest (or smallest) values, best first, and their indices."""
    del sorted  # sorted is one of the orders that sorted=False allows
    if x.ndim == 0:
        return reshaped(x, (k,) if k == 0 else ()), jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    order = lax.slice_in_dim(sorted_indices(x, axis, descending=largest), 0, k, axis=axis)
    return gather(x, axis, order), order


def _pick(x: jax.Array, axis: int, index: jax.Array, keepdim: bool) -> Pair:
    """The entry at an index (kept axis of size 1) along an axis."""
    value = gather(x, axis, index)
    if keepdim:
        return value, index
    return lax.squeeze(value, (axis,)), lax.squeeze(index, (axis,))


@op("aten.kthvalue.default", reads=(0,), counted=False, ranges=("extremes",))
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The ``k``-th smallest value, counted from 1, and its index."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    order = sorted_indices(x, axis, descending=False)
    return _pick(x, axis, lax.slice_in_dim(order, k - 1, k, axis=axis), keepdim)


def _median_index(x: jax.Array, axis: int, *, skip_nan: bool) -> jax.Array:
    """Index of the lower median along an axis, which is kept with size 1."""
    order = sorted_indices(x, axis, descending=False)
    size = x.shape[axis]
    missing = x != x
    count = jnp.sum(missing, axis=axis, keepdims=True, dtype=np.int64)
    if skip_nan:
        rank = jnp.maximum(size - count - 1, 0) // 2
    else:
        rank = jnp.full_like(count, (size - 1) // 2)
    index = gather(order, axis, rank)
    if skip_nan:
        return index
    first = jnp.expand_dims(first_match(missing, axis), axis)
    return jnp.where(count > 0, first, index)


def _median(x: jax.Array, dim: int, keepdim: bool, skip_nan: bool) -> Pair:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    index = lax.stop_gradient(_median_index(x, axis, skip_nan=skip_nan))
    return _pick(x, axis, index, keepdim)


@op("aten.median.dim", reads=(0,), counted=False, ranges=("extremes",))
def median_dim(x: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    """The lower median along a dimension and its index; NaN if any is."""
    return _median(x, dim, keepdim, False)


@op("aten.nanmedian.dim", reads=(0,), counted=False)
def nanmedian_dim(x: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    """The lower median of the elements that are not NaN, and its index."""
    return _median(x, dim, keepdim, True)


def _shared_slope_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, value = saved
    hit = (x == value) | ((x != x) & (value != value))
    share = g / jnp.sum(hit, dtype=g.dtype)
    return jnp.where(hit, share, 0).astype(x.dtype), jnp.zeros_like(value)


@with_gradient(_shared_slope_backward)
def _shared_slope(x: jax.Array, value: jax.Array) -> jax.Array:
    """An element chosen from ``x``, whose gradient all its equals share."""
    del x
    return value


def _median_of_all(x: jax.Array, *, skip_nan: bool) -> jax.Array:
    """The lower median of all elements; that of none is NaN, or the least of its type."""
    if not x.size:
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.full((), jnp.nan if inexact else jnp.iinfo(x.dtype).min, x.dtype)
    return _median(lax.stop_gradient(x).reshape(-1), 0, False, skip_nan)[0]


@op("aten.median.default", reads=(0,), counted=False)
def median(x: jax.Array) -> jax.Array:
    """The lower median of all elements; equals share the gradient."""
    return _shared_slope(x, _median_of_all(x, skip_nan=False))


@op("aten.nanmedian.default", reads=(0,), counted=False)
def nanmedian(x: jax.Array) -> jax.Array:
    """The lower median of all elements that are not NaN; equals share the gradient."""
    return _shared_slope(x, _median_of_all(x, skip_nan=True))


@op("aten.mode.default", reads=(0,), counted=False, ranges=("extremes",))
def mode(x: jax.Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent value, the smallest of several, and its last index."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = normalize_axis(dim, x.ndim)
    lines = jnp.moveaxis(lax.stop_gradient(x), axis, -1)
    order = sorted_indices(lines, lines.ndim - 1, descending=False)
    ranked = gather(lines, lines.ndim - 1, order)
    place = lax.broadcasted_iota(np.int64, ranked.shape, ranked.ndim - 1)
    starts = jnp.concatenate(
        [jnp.ones_like(ranked[..., :1], bool), ranked[..., 1:] != ranked[..., :-1]], axis=-1
    )
    start = lax.cummax(jnp.where(starts, place, 0), axis=ranked.ndim - 1)
    best = jnp.argmax(place - start, axis=-1, keepdims=True)  # the end of the longest run
    index = jnp.moveaxis(gather(order, order.ndim - 1, best), -1, axis)
    return _pick(x, axis, index, keepdim)


def _search(
    edges: jax.Array, values: Any, *, right: bool, out_int32: bool, sorter: jax.Array | None
) -> jax.Array:
    """Count the edges below each value (or not above it, if ``right``)."""
    kind = np.int32 if out_int32 else np.int64
    dtype = edges.dtype if is_number(values) else result_type(edges, values)
    query = jnp.asarray(values).astype(dtype)
    if sorter is not None:
        edges = gather(edges, edges.ndim - 1, sorter)
    side = "right" if right else "left"
    edges = edges.astype(dtype)
    if edges.ndim == 1:
        return jnp.searchsorted(edges, query, side=side).astype(kind)
    lines = rows_of(query)
    rows = rows_of(edges)
    places = jax.vmap(lambda e, v: jnp.searchsorted(e, v, side=side))(rows, lines)
    return places.reshape(query.shape).astype(kind)


@op(
    *("aten.searchsorted.Tensor", "aten.searchsorted.Scalar"),
    differentiable=False,
    counted=False,
    ranges=("buckets",),
)
def searchsorted(
    sorted_sequence: jax.Array,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """Where values would be inserted into a sorted sequence to keep it sorted."""
    right = right or side == "right"
    return _search(sorted_sequence, values, right=right, out_int32=out_int32, sorter=sorter)


@op(
    *("aten.bucketize.Tensor", "aten.bucketize.Scalar"),
    differentiable=False,
    counted=False,
    ranges=("buckets",),
)
def bucketize(
    values: Any, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    """The bucket between boundaries that each value falls into."""
    return _search(boundaries, values, right=right, out_int32=out_int32, sorter=None)


@op("aten.histc.default", differentiable=False, counted=False)
def histc(x: jax.Array, bins: int = 100, min: float = 0, max: float = 0) -> jax.Array:
    """How many elements fall into each of equal bins; the last one includes its end."""
    flat = x.reshape(-1)
    wide = flat.astype(np.float64)
    low, high = jnp.float64(min), jnp.float64(max)
    if min == max:
        low, high = jnp.min(wide, initial=np.inf), jnp.max(wide, initial=-np.inf)
        flat_range = low == high
        low, high = jnp.where(flat_range, low - 1, low), jnp.where(flat_range, high + 1, high)
    inside = (wide >= low) & (wide <= high)
    place = jnp.minimum(((wide - low) * (bins / (high - low))).astype(np.int64), bins - 1)
    counts = jnp.zeros(bins, np.int64).at[jnp.where(inside, place, 0)].add(inside.astype(np.int64))
    return counts.astype(x.dtype if is_float(x.dtype) else np.float32)
