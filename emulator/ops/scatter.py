"""Lowerings: writing by index.

Where several entries of an index name one place, a plain write leaves one of them
(which one is undefined, as in torch) and reductions take all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import broadcast_to, cast, constant, is_number
from emulator.ops._reduction import normalize_axis
from emulator.ops.index import (
    DataDependentIndex,
    Indices,
    gather_key,
    in_bounds,
    index_key,
    is_mask,
)
from emulator.ops.rearrange import strided_places
from emulator.ops.registry import op

Key = tuple[Any, ...]

MODE = "promise_in_bounds"


_written = partial(
    op, reads=(2,), moves=True, fusing=Fusing.APART, indices="along", ranges=("some_of", 0, 3)
)


def read_at(x: jax.Array, key: Key) -> jax.Array:
    """What lies at the places that a key names."""
    return x.at[key].get(mode=MODE, wrap_negative_indices=False)


def added(x: jax.Array, key: Key, values: jax.Array) -> jax.Array:
    """Values added to the places that a key names."""
    if x.dtype == np.bool_:  # a sum of booleans is their or
        return x.at[key].max(values, mode=MODE, wrap_negative_indices=False)
    return x.at[key].add(values, mode=MODE, wrap_negative_indices=False)


def multiplied(x: jax.Array, key: Key, values: jax.Array) -> jax.Array:
    """The places that a key names multiplied by values."""
    if x.dtype == np.bool_:  # a product of booleans is their and
        return x.at[key].min(values, mode=MODE, wrap_negative_indices=False)
    return x.at[key].multiply(values, mode=MODE, wrap_negative_indices=False)


def written(x: jax.Array, key: Key, values: Any) -> jax.Array:
    """Values in the places that a key names; see :func:`put` for torch's gradient."""
    return x.at[key].set(values, mode=MODE, wrap_negative_indices=False)


def put(x: jax.Array, key: Key, values: jax.Array) -> jax.Array:
    """Write values over the places a key names, with torch's gradient.

    What is written over gets no gradient; every value gets the gradient of its place,
    even if another value was written over it.

    Args:
        x: Tensor to write into.
        key: Integer arrays and full slices, counted from the start.
        values: Values that broadcast to what the key reads.

    Returns:
        The changed copy.
    """
    shape = jax.eval_shape(lambda a: read_at(a, key), x).shape
    static = tuple(k if isinstance(k, slice) else None for k in key)
    arrays = tuple(k for k in key if not isinstance(k, slice))
    return _put(x, broadcast_to(values.astype(x.dtype), shape), arrays, static)


def _whole_key(arrays: Key, static: Key) -> Key:
    rest = iter(arrays)
    return tuple(next(rest) if k is None else slice(None) for k in static)


def _put_backward(static: Key, arrays: Key, g: jax.Array) -> tuple[Any, ...]:
    key = _whole_key(arrays, static)
    return written(g, key, jnp.zeros((), g.dtype)), read_at(g, key), (None,) * len(arrays)


@with_gradient(_put_backward, saves=lambda _y, _x, _values, arrays, _static: arrays, static=(3,))
def _put(x: jax.Array, values: jax.Array, arrays: Key, static: Key) -> jax.Array:
    return written(x, _whole_key(arrays, static), values)


@op(
    "aten.index_put.default",
    reads=(1,),
    moves=True,
    fusing=Fusing.APART,
    indices="each_dim",
    ranges=("some_of", 0, 2),
)
@op("aten._unsafe_index_put.default", reads=(1,), moves=True)
@op("aten._index_put_impl.default", reads=(1,), moves=True, indices="each_dim")
def index_put(
    x: jax.Array,
    indices: Indices,
    values: jax.Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> jax.Array:
    """``x`` with the indexed entries replaced by values, or values added to them."""
    del unsafe
    if any(i is not None and is_mask(i) for i in indices):
        return _mask_put(x, indices, values, accumulate)
    key = index_key(x, indices)
    if accumulate:
        shape = jax.eval_shape(lambda a: read_at(a, key), x).shape
        return added(x, key, broadcast_to(values.astype(x.dtype), shape))
    return put(x, key, values)


def _mask_put(x: jax.Array, indices: Indices, values: jax.Array, accumulate: bool) -> jax.Array:
    """One mask as the only index: its true entries take the values in order."""
    named = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(named) != 1:
        raise DataDependentIndex(
            op="aten.index_put.default",
            found="a boolean mask beside other indices",
            hint="Use torch.where with a mask of the whole shape.",
        )
    lead, mask = named[0]
    mask = mask.astype(bool)
    rest = x.shape[lead + mask.ndim :]
    values = values.astype(x.dtype)
    full = mask.reshape(mask.shape + (1,) * len(rest))
    axis = values.ndim - len(rest) - 1  # the dimension that counts true entries
    if axis >= 0 and values.shape[axis] != 1:
        order = jnp.maximum(jnp.cumsum(mask.reshape(-1)) - 1, 0)
        key = (slice(None),) * axis + (order,)
        spread = read_at(values, key)
        tail = values.shape[axis + 1 :]
        values = spread.reshape(values.shape[:axis] + mask.shape + tail)
    elif axis >= 0:
        ones = (1,) * mask.ndim
        values = values.reshape(values.shape[:axis] + ones + values.shape[axis + 1 :])
    values = broadcast_to(values, x.shape)
    return jnp.where(full, x + values if accumulate else values, x)


@op("aten.masked_scatter.default", reads=(1,), moves=True, fusing=Fusing.APART)
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    """The true entries of the mask take the elements of ``source`` in order."""
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = broadcast_to(x, shape), broadcast_to(mask.astype(bool), shape)
    if source.size == 0:
        return x
    order = jnp.clip(jnp.cumsum(mask.reshape(-1)) - 1, 0, source.size - 1)
    spread = read_at(source.reshape(-1).astype(x.dtype), (order,))
    return jnp.where(mask, spread.reshape(shape), x)


@op(
    "aten._unsafe_masked_index_put_accumulate.default",
    reads=(1, 2),
    complex=True,
    flops=("input", 2, 1),
)
def masked_index_put(
    x: jax.Array, mask: jax.Array, indices: Indices, values: jax.Array
) -> jax.Array:
    """Values added to indexed entries where the mask holds."""
    if not x.size:
        return x
    safe = tuple(None if i is None else jnp.where(mask, i, 0) for i in indices)
    return index_put(x, safe, jnp.where(mask, values, 0).astype(x.dtype), accumulate=True)


@op("aten.put.default", reads=(1,), moves=True, indices="flat")
def put_flat(
    x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False
) -> jax.Array:
    """Elements of the flattened tensor replaced by, or increased by, ``source``."""
    key = (in_bounds(index.reshape(-1), x.size),)
    flat, values = x.reshape(-1), source.reshape(-1).astype(x.dtype)
    return (added(flat, key, values) if accumulate else put(flat, key, values)).reshape(x.shape)


def scatter_key(x: jax.Array, dim: int, index: jax.Array) -> Key:
    """The places that an index along a dimension names."""
    return gather_key(index, normalize_axis(dim, x.ndim), max(x.ndim, 1))


def head_of(src: jax.Array, index: jax.Array) -> jax.Array:
    """The part of ``src`` that an index of another shape reads."""
    if src.ndim == 0:
        return src.reshape((1,) * index.ndim)
    return lax.slice(src, (0,) * src.ndim, index.shape)


def as_line(x: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """0-d tensors and indices as one-element vectors."""
    return (x if x.ndim else x.reshape(1)), (index if index.ndim else index.reshape(1))


@_written("aten.scatter.src")
def scatter(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """One entry along a dimension written for every entry of the index."""
    line, index = as_line(x, index)
    return put(line, scatter_key(line, dim, index), head_of(src, index)).reshape(x.shape)


@_written("aten.scatter.value")
def scatter_value(x: jax.Array, dim: int, index: jax.Array, value: float) -> jax.Array:
    """One number written for every entry of the index."""
    line, index = as_line(x, index)
    number = jnp.asarray(constant(value, x.dtype))
    return put(line, scatter_key(line, dim, index), number).reshape(x.shape)


@op("aten.scatter_add.default", reads=(2,), complex=True, flops=("input", 3, 1), indices="along")
def scatter_add(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """One entry along a dimension increased for every entry of the index."""
    line, index = as_line(x, index)
    values = head_of(src, index).astype(x.dtype)
    return added(line, scatter_key(line, dim, index), values).reshape(x.shape)


@op(
    "aten.scatter.reduce",
    differentiable=False,
    flops=("input", 3, 1),
    indices="along",
    no_derivative=(0, 3),
)
@op(
    "aten.scatter.value_reduce",
    differentiable=False,
    flops=("input", 2, 1),
    indices="along",
    no_derivative=(0, 3),
)
def scatter_old(x: jax.Array, dim: int, index: jax.Array, src: Any, *, reduce: str) -> jax.Array:
    """Entries added or multiplied; torch gives it no gradient."""
    line, index = as_line(x, index)
    key = scatter_key(line, dim, index)
    values = cast(src, x.dtype) if is_number(src) else head_of(src, index).astype(x.dtype)
    write = added if reduce == "add" else multiplied
    return write(line, key, values).reshape(x.shape)


@op("aten.index_add.default", reads=(2,), complex=True, flops=("input", 3, 1), indices="along")
def index_add(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: float = 1
) -> jax.Array:
    """Slices along a dimension increased by ``alpha * source``."""
    if not x.size:
        return x  # there is no place to name, and JAX has no gradient for that
    values = source.astype(x.dtype)
    if alpha != 1:
        values = values * constant(alpha, x.dtype)
    line, key = _slices(x, dim, index)
    return added(line, key, values.reshape(values.shape or (1,))).reshape(x.shape)


@_written("aten.index_copy.default")
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    """Slices along a dimension replaced by those of ``source``."""
    line, key = _slices(x, dim, index)
    return put(line, key, source.reshape(source.shape or (1,))).reshape(x.shape)


@op(
    *("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"),
    reads=(2,),
    moves=True,
    indices="along_signed",
    ranges=("some_of", 0, 3),
)
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    """Slices along a dimension filled with one number."""
    line, key = _slices(x, dim, index)
    # A mask, so that a place that is named twice counts once in the gradient of the number.
    hit = written(jnp.zeros(line.shape, bool), key, True)
    return jnp.where(hit, jnp.asarray(cast(value, x.dtype)), line).reshape(x.shape)


def _strided_put_backward(where: jax.Array, g: jax.Array) -> tuple[Any, ...]:
    part = read_at(g, (where,))
    return written(jnp.zeros_like(g), (where,), part), part, None


@with_gradient(_strided_put_backward, saves=lambda _y, _x, _src, places: places)
def _strided_put(x: jax.Array, src: jax.Array, places: jax.Array) -> jax.Array:
    return written(x, (places,), src)


@op("aten.as_strided_scatter.default", moves=True)
def as_strided_scatter(
    x: jax.Array,
    src: jax.Array,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int | None = None,
) -> jax.Array:
    """``x`` with the elements of a strided view of it replaced by ``src``.

    In torch 2.13 the gradient of ``x`` is the one of the replaced elements and zero elsewhere,
    the reverse of the derivative; it is so here too.
    """
    places = jnp.asarray(strided_places(size, stride, storage_offset))
    src = broadcast_to(src.astype(x.dtype), places.shape)
    return _strided_put(x.reshape(-1), src, places).reshape(x.shape)


def _slices(x: jax.Array, dim: int, index: jax.Array) -> tuple[jax.Array, Key]:
    """The tensor with at least one dimension, and a key of slices along one of them."""
    axis = normalize_axis(dim, x.ndim)
    line = x if x.ndim else x.reshape(1)
    return line, (slice(None),) * axis + (in_bounds(index.reshape(-1), line.shape[axis]),)
