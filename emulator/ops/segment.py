"""Lowerings: reductions of entries that an index sends to one place, or that lie in one run."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import widened
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import constant, is_float
from emulator.ops._reduction import highest, lowest, normalize_axis
from emulator.ops.index import in_bounds, take_slices
from emulator.ops.registry import op
from emulator.ops.scatter import (
    MODE,
    Key,
    added,
    as_line,
    head_of,
    multiplied,
    read_at,
    scatter_key,
    written,
)


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
    line, index = as_line(x, index)
    key = scatter_key(line, dim, index)
    values = head_of(src, index).astype(x.dtype)
    return _reduce_into(line, values, key, reduce, include_self).reshape(x.shape)


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
    line, source = as_line(x, source)
    axis = normalize_axis(dim, x.ndim)
    shape = tuple(-1 if a == axis else 1 for a in range(source.ndim))
    places = jnp.broadcast_to(index.reshape(shape), source.shape)
    key = scatter_key(line, axis, in_bounds(places, line.shape[axis]))
    return _reduce_into(line, source.astype(x.dtype), key, reduce, include_self).reshape(x.shape)


def _start(dtype: Any, reduce: str) -> np.ndarray:
    """The number that changes nothing under a reduction."""
    if reduce in ("amax", "max"):
        return lowest(dtype)
    if reduce in ("amin", "min"):
        return highest(dtype)
    return constant(1 if reduce == "prod" else 0, dtype)


def _count(x: jax.Array, values: jax.Array, key: Key, include_self: bool) -> jax.Array:
    ones = jnp.full(x.shape, int(include_self), x.dtype)
    return jnp.maximum(added(ones, key, jnp.ones_like(values)), 1)


def _reduced_backward(reduce: str, include_self: bool, saved: Any, g: jax.Array) -> Any:
    """torch's ``scatter_reduce_backward``."""
    x, values, key, out = saved
    if reduce == "sum":
        dx, dv = g, read_at(g, key)
    elif reduce == "mean":
        share = g / _count(x, values, key, include_self)
        dx, dv = share, read_at(share, key)
    elif reduce == "prod":
        dx, dv = _product_slopes(x, values, key, out, include_self, g)
    else:
        mine, theirs = (x == out), (values == read_at(out, key))
        ties = added(mine.astype(g.dtype), key, theirs.astype(g.dtype))
        share = g / ties
        dx, dv = jnp.where(mine, share, 0), jnp.where(theirs, read_at(share, key), 0)
    if not include_self:
        dx = written(dx, key, jnp.zeros((), g.dtype))
    return dx, dv, (None,) * len(key)


@with_gradient(
    _reduced_backward, saves=lambda out, x, values, key, *_: (x, values, key, out), static=(3, 4)
)
def _reduce_into(
    x: jax.Array, values: jax.Array, key: Key, reduce: str, include_self: bool
) -> jax.Array:
    base = x if include_self else written(x, key, _start(x.dtype, reduce))
    if reduce in ("amax", "amin"):
        write = base.at[key].max if reduce == "amax" else base.at[key].min
        return write(values, mode=MODE, wrap_negative_indices=False)
    out = (multiplied if reduce == "prod" else added)(base, key, values)
    if reduce != "mean":
        return out
    count = _count(x, values, key, include_self)
    return out / count if is_float(x.dtype) else out // count


def _product_slopes(
    x: jax.Array, values: jax.Array, key: Key, out: jax.Array, include_self: bool, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Products of all other factors: right beside one zero, zero beside several."""
    whole = jnp.where(x == 0, 1, x)
    others = _reduce_into(whole, values, key, "prod", include_self)
    dx = g * others / whole
    zero = values == 0
    zeros = read_at(added(jnp.zeros_like(x), key, zero.astype(x.dtype)), key)
    single = zero & (zeros == 1)
    without = _reduce_into(x, jnp.where(single, 1, values), key, "prod", include_self)
    beside = read_at(g * without, key)
    plain = read_at(g * out, key) / jnp.where(zero, 1, values)
    return dx, jnp.where(single, beside, jnp.where(zero, 0, plain))


def _extremes_backward(largest: bool, saved: Any, g: jax.Array) -> tuple[Any, ...]:
    """Equals share the gradient of their run; a negative one torch 2.13 gives to each whole."""
    x, run, out = saved
    hit = (x == out.at[run].get(mode="fill", fill_value=jnp.nan)) | (x != x)
    ties = jnp.zeros(out.shape, g.dtype).at[run].add(hit.astype(g.dtype), mode="drop")
    share = jnp.where(g > 0, g / ties, g).at[run].get(mode="fill", fill_value=0)
    return jnp.where(hit, share, 0), None, None


@with_gradient(_extremes_backward, saves=lambda out, x, run, *_: (x, run, out), static=(3,))
def _extremes(x: jax.Array, run: jax.Array, start: jax.Array, largest: bool) -> jax.Array:
    """Extremes of runs; NaN wins."""
    write = start.at[run].max if largest else start.at[run].min
    missing = jnp.zeros(start.shape, bool).at[run].max(x != x, mode="drop")
    return jnp.where(missing, jnp.nan, write(x, mode="drop")).astype(x.dtype)


def _reduce(x: jax.Array, ends: jax.Array, reduce: str, initial: float | None) -> jax.Array:
    """Runs along the first axis of ``x`` that ``ends`` (one more than runs) bound."""
    runs = ends.shape[0] - 1
    place = np.arange(x.shape[0])
    run = jnp.searchsorted(ends, place, side="right") - 1
    run = jnp.where((run >= 0) & (run < runs), run, runs)
    start = jnp.full(
        (runs, *x.shape[1:]), _start(x.dtype, reduce) if initial is None else initial, x.dtype
    )
    if reduce in ("max", "min"):
        return _extremes(x, run, start, reduce == "max")
    spill = jnp.concatenate([start, start[:1] if runs else jnp.zeros((1, *x.shape[1:]), x.dtype)])
    out = _reduce_into(spill, x, (run,), "prod" if reduce == "prod" else "sum", True)[:runs]
    if reduce != "mean":
        return out
    sizes = (ends[1:] - ends[:-1]).reshape(-1, *(1,) * (x.ndim - 1))
    out = out / jnp.maximum(sizes, 1).astype(x.dtype)
    return jnp.where(sizes == 0, jnp.nan, out) if initial is None else out


@op("aten.segment_reduce.default", reads=(0, 1), counted=False)
@widened
def segment_reduce(
    x: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> jax.Array:
    """Runs of entries along an axis reduced to one entry each.

    Args:
        x: Data.
        reduce: ``"max"``, ``"min"``, ``"sum"``, ``"mean"`` or ``"prod"``.
        lengths: Length of each run, ``(..., runs)`` with the axes before ``axis``.
        indices: Not supported by torch.
        offsets: Where runs begin, and where the last one ends, instead of lengths.
        axis: Axis of the runs.
        unsafe: Ignored: lengths are not checked.
        initial: What an empty run gives, and what every other starts from.

    Returns:
        As ``x``, with one entry per run.
    """
    del indices, unsafe
    axis = normalize_axis(axis, x.ndim)
    if offsets is None:
        ends = jnp.cumsum(jnp.asarray(lengths), axis=-1)
        offsets = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends], axis=-1)
    lead = x.shape[:axis]
    flat = x.reshape((math.prod(lead), *x.shape[axis:]))
    bounds = offsets.reshape(math.prod(lead), -1)
    out = jax.vmap(lambda a, e: _reduce(a, e, reduce, initial))(flat, bounds)
    return out.reshape((*lead, *out.shape[1:]))


@op(
    "aten.repeat_interleave.Tensor",
    differentiable=False,
    cheap=False,
    moves=True,
    repeats=True,
    complex=False,
)
def repeat_interleave_places(repeats: jax.Array, *, output_size: int) -> jax.Array:
    """Every place as often as stated; ``output_size`` is the sum."""
    ends = jnp.cumsum(repeats)
    return jnp.searchsorted(ends, np.arange(output_size), side="right").astype(repeats.dtype)


@op("aten.repeat_interleave.self_Tensor", reads=(1,), moves=True, repeats=True)
def repeat_interleave(
    x: jax.Array, repeats: jax.Array, dim: int | None = None, *, output_size: int
) -> jax.Array:
    """Every slice along a dimension as often as stated; ``output_size`` is the sum."""
    x = x.reshape(-1) if dim is None or x.ndim == 0 else x
    axis = normalize_axis(dim or 0, x.ndim)
    repeats = jnp.broadcast_to(repeats.reshape(-1), (x.shape[axis],))
    return take_slices(x, repeat_interleave_places(repeats, output_size=output_size), axis)
