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
from emulator.ops._promote import broadcast_to, cast, constant, is_float, is_number
from emulator.ops._reduction import highest, lowest, normalize_axis
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

_MODE = "promise_in_bounds"


_written = partial(
    op, reads=(2,), moves=True, fusing=Fusing.APART, indices="along", ranges=("some_of", 0, 3)
)


def _read(x: jax.Array, key: Key) -> jax.Array:
    return x.at[key].get(mode=_MODE, wrap_negative_indices=False)


def _add(x: jax.Array, key: Key, values: jax.Array) -> jax.Array:
    if x.dtype == np.bool_:  # a sum of booleans is their or
        return x.at[key].max(values, mode=_MODE, wrap_negative_indices=False)
    return x.at[key].add(values, mode=_MODE, wrap_negative_indices=False)


def _multiply(x: jax.Array, key: Key, values: jax.Array) -> jax.Array:
    if x.dtype == np.bool_:  # a product of booleans is their and
        return x.at[key].min(values, mode=_MODE, wrap_negative_indices=False)
    return x.at[key].multiply(values, mode=_MODE, wrap_negative_indices=False)


def _set(x: jax.Array, key: Key, values: Any) -> jax.Array:
    return x.at[key].set(values, mode=_MODE, wrap_negative_indices=False)


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
    shape = jax.eval_shape(lambda a: _read(a, key), x).shape
    static = tuple(k if isinstance(k, slice) else None for k in key)
    arrays = tuple(k for k in key if not isinstance(k, slice))
    return _put(x, broadcast_to(values.astype(x.dtype), shape), arrays, static)


def _whole_key(arrays: Key, static: Key) -> Key:
    rest = iter(arrays)
    return tuple(next(rest) if k is None else slice(None) for k in static)


def _put_backward(static: Key, arrays: Key, g: jax.Array) -> tuple[Any, ...]:
    key = _whole_key(arrays, static)
    return _set(g, key, jnp.zeros((), g.dtype)), _read(g, key), (None,) * len(arrays)


@with_gradient(_put_backward, saves=lambda _y, _x, _values, arrays, _static: arrays, static=(3,))
def _put(x: jax.Array, values: jax.Array, arrays: Key, static: Key) -> jax.Array:
    return _set(x, _whole_key(arrays, static), values)


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
        shape = jax.eval_shape(lambda a: _read(a, key), x).shape
        return _add(x, key, broadcast_to(values.astype(x.dtype), shape))
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
        spread = _read(values, key)
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
    spread = _read(source.reshape(-1).astype(x.dtype), (order,))
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
    return (_add(flat, key, values) if accumulate else put(flat, key, values)).reshape(x.shape)


def _scatter_key(x: jax.Array, dim: int, index: jax.Array) -> Key:
    return gather_key(index, normalize_axis(dim, x.ndim), max(x.ndim, 1))


def _head(src: jax.Array, index: jax.Array) -> jax.Array:
    """The part of ``src`` that an index of another shape reads."""
    if src.ndim == 0:
        return src.reshape((1,) * index.ndim)
    return lax.slice(src, (0,) * src.ndim, index.shape)


def _along(x: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """0-d tensors and indices as one-element vectors."""
    return (x if x.ndim else x.reshape(1)), (index if index.ndim else index.reshape(1))


@_written("aten.scatter.src")
def scatter(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """One entry along a dimension written for every entry of the index."""
    line, index = _along(x, index)
    return put(line, _scatter_key(line, dim, index), _head(src, index)).reshape(x.shape)


@_written("aten.scatter.value")
def scatter_value(x: jax.Array, dim: int, index: jax.Array, value: float) -> jax.Array:
    """One number written for every entry of the index."""
    line, index = _along(x, index)
    number = jnp.asarray(constant(value, x.dtype))
    return put(line, _scatter_key(line, dim, index), number).reshape(x.shape)


@op("aten.scatter_add.default", reads=(2,), complex=True, flops=("input", 3, 1), indices="along")
def scatter_add(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """One entry along a dimension increased for every entry of the index."""
    line, index = _along(x, index)
    values = _head(src, index).astype(x.dtype)
    return _add(line, _scatter_key(line, dim, index), values).reshape(x.shape)


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
    line, index = _along(x, index)
    key = _scatter_key(line, dim, index)
    values = cast(src, x.dtype) if is_number(src) else _head(src, index).astype(x.dtype)
    write = _add if reduce == "add" else _multiply
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
    return _add(line, key, values.reshape(values.shape or (1,))).reshape(x.shape)


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
    hit = _set(jnp.zeros(line.shape, bool), key, True)
    return jnp.where(hit, jnp.asarray(cast(value, x.dtype)), line).reshape(x.shape)


def _strided_put_backward(where: jax.Array, g: jax.Array) -> tuple[Any, ...]:
    part = _read(g, (where,))
    return _set(jnp.zeros_like(g), (where,), part), part, None


@with_gradient(_strided_put_backward, saves=lambda _y, _x, _src, places: places)
def _strided_put(x: jax.Array, src: jax.Array, places: jax.Array) -> jax.Array:
    return _set(x, (places,), src)


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


@op("aten.scatter_reduce.two", reads=(0, 2, 3), flops=("input", 3, 1), indices="along")
def scatter_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    """Entries along a dimension combined with all values sent to them.

    Args:
        x: Tensor to write into.
        dim: Dimension the index counts along.
        index: Where each value of ``src`` goes.
        src: Values.
        reduce: ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``.
        include_self: Whether what is in ``x`` takes part.

    Returns:
        The changed copy.
    """
    line, index = _along(x, index)
    key = _scatter_key(line, dim, index)
    values = _head(src, index).astype(x.dtype)
    return _reduced(line, values, key, reduce, include_self).reshape(x.shape)


@op("aten.index_reduce.default", reads=(0, 2, 3), flops=("input", 3, 1), indices="along")
def index_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    """Slices along a dimension combined with those sent to them."""
    line, source = _along(x, source)
    axis = normalize_axis(dim, x.ndim)
    shape = tuple(-1 if a == axis else 1 for a in range(source.ndim))
    places = jnp.broadcast_to(index.reshape(shape), source.shape)
    key = _scatter_key(line, axis, in_bounds(places, line.shape[axis]))
    return _reduced(line, source.astype(x.dtype), key, reduce, include_self).reshape(x.shape)


def put_reduced(x: jax.Array, values: jax.Array, key: Key, reduce: str) -> jax.Array:
    """``x`` with values combined into the places a key names; ``reduce`` as in scatter_reduce."""
    return _reduced(x, values, key, reduce, True)


def _start(dtype: Any, reduce: str) -> np.ndarray:
    """The number that changes nothing under a reduction."""
    if reduce == "amax":
        return lowest(dtype)
    if reduce == "amin":
        return highest(dtype)
    return constant(1 if reduce == "prod" else 0, dtype)


def _count(x: jax.Array, values: jax.Array, key: Key, include_self: bool) -> jax.Array:
    ones = jnp.full(x.shape, int(include_self), x.dtype)
    return jnp.maximum(_add(ones, key, jnp.ones_like(values)), 1)


def _reduced_backward(reduce: str, include_self: bool, saved: Any, g: jax.Array) -> Any:
    """torch's ``scatter_reduce_backward``."""
    x, values, key, out = saved
    if reduce == "sum":
        dx, dv = g, _read(g, key)
    elif reduce == "mean":
        share = g / _count(x, values, key, include_self)
        dx, dv = share, _read(share, key)
    elif reduce == "prod":
        dx, dv = _product_slopes(x, values, key, out, include_self, g)
    else:
        mine, theirs = (x == out), (values == _read(out, key))
        ties = _add(mine.astype(g.dtype), key, theirs.astype(g.dtype))
        share = g / ties
        dx, dv = jnp.where(mine, share, 0), jnp.where(theirs, _read(share, key), 0)
    if not include_self:
        dx = _set(dx, key, jnp.zeros((), g.dtype))
    return dx, dv, (None,) * len(key)


@with_gradient(
    _reduced_backward, saves=lambda out, x, values, key, *_: (x, values, key, out), static=(3, 4)
)
def _reduced(
    x: jax.Array, values: jax.Array, key: Key, reduce: str, include_self: bool
) -> jax.Array:
    base = x if include_self else _set(x, key, _start(x.dtype, reduce))
    if reduce in ("amax", "amin"):
        write = base.at[key].max if reduce == "amax" else base.at[key].min
        return write(values, mode=_MODE, wrap_negative_indices=False)
    out = (_multiply if reduce == "prod" else _add)(base, key, values)
    if reduce != "mean":
        return out
    count = _count(x, values, key, include_self)
    return out / count if is_float(x.dtype) else out // count


def _product_slopes(
    x: jax.Array, values: jax.Array, key: Key, out: jax.Array, include_self: bool, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Products of all other factors: right beside one zero, zero beside several."""
    whole = jnp.where(x == 0, 1, x)
    others = _reduced(whole, values, key, "prod", include_self)
    dx = g * others / whole
    zero = values == 0
    zeros = _read(_add(jnp.zeros_like(x), key, zero.astype(x.dtype)), key)
    single = zero & (zeros == 1)
    without = _reduced(x, jnp.where(single, 1, values), key, "prod", include_self)
    beside = _read(g * without, key)
    plain = _read(g * out, key) / jnp.where(zero, 1, values)
    return dx, jnp.where(single, beside, jnp.where(zero, 0, plain))
