"""Lowerings: reductions of runs of entries, and runs of repeats."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import widened
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import normalize_axis
from emulator.ops.index import take_slices
from emulator.ops.registry import op
from emulator.ops.scatter import put_reduced

_START = {"max": -math.inf, "min": math.inf, "sum": 0.0, "mean": 0.0, "prod": 1.0}


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
    start = jnp.full((runs, *x.shape[1:]), _START[reduce] if initial is None else initial, x.dtype)
    if reduce in ("max", "min"):
        return _extremes(x, run, start, reduce == "max")
    spill = jnp.concatenate([start, start[:1] if runs else jnp.zeros((1, *x.shape[1:]), x.dtype)])
    out = put_reduced(spill, x, (run,), "prod" if reduce == "prod" else "sum")[:runs]
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
