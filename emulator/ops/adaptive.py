"""Lowerings of pooling to a given output size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import widen
from emulator.op_facts.facts import Fusing
from emulator.ops._reduction import lowest, reduce_sum
from emulator.ops._resample import Table, check_places, resample, span_entries
from emulator.ops._reshape import merged
from emulator.ops.registry import op


def _spans(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and lengths of spans: from the floor of ``i * size / out`` to the next's ceiling."""
    i = np.arange(out, dtype=np.int64)
    first = i * size // out
    return first, -(-(i + 1) * size // out) - first


def _adaptive_average(x: jax.Array, size: Sequence[int | None], n: int) -> jax.Array:
    lead = x.shape[: x.ndim - n]
    if 0 in (*lead, *size):
        sizes = [x.shape[x.ndim - n + d] if out is None else out for d, out in enumerate(size)]
        return jnp.zeros((*lead, *sizes), x.dtype)
    y = widen(x)
    for d, out in enumerate(size):
        axis = x.ndim - n + d
        length = x.shape[axis]
        if out is None or out == length:
            continue
        if length % out == 0:
            split = y.reshape(*y.shape[:axis], out, length // out, *y.shape[axis + 1 :])
            y = reduce_sum(split, (axis + 1,)) / (length // out)
        else:
            y = resample(y, _means(length, out), axis)
    return y.astype(x.dtype)


def _means(length: int, out: int) -> Table:
    check_places(length, out)
    first, count = _spans(length, out)
    source, target = span_entries(first, count)
    return Table(source=source, target=target, weight=1 / count[target], size=length, out=out)


_MAX_TAPS = 64
"""Windows of more places are looked through by a loop: code for each would grow with sizes."""


def _adaptive_max(x: jax.Array, size: Sequence[int], n: int) -> tuple[jax.Array, jax.Array]:
    """Largest values and their places in the flattened last n axes; the last NaN wins."""
    lead, places = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    if 0 in (*lead, *size):
        return jnp.zeros((*lead, *size), x.dtype), jnp.zeros((*lead, *size), np.int64)
    for length, out in zip(places, size, strict=True):
        check_places(length, out)
    spans = [_spans(length, out) for length, out in zip(places, size, strict=True)]
    widths = [int(count.max(initial=0)) for _, count in spans]
    flat = x.reshape(*x.shape[: x.ndim - n], math.prod(places))
    fixed = lax.stop_gradient(flat)
    starts = [first for first, _ in spans]
    best = jnp.full((*flat.shape[:-1], *size), lowest(x.dtype), x.dtype)
    where = jnp.broadcast_to(jnp.asarray(_flat_index(starts, places)), best.shape)

    def look(taps: Sequence[Any], best: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One place of each window; a window that has fewer places looks at its last one again."""
        chosen = [f + jnp.minimum(t, c - 1) for t, (f, c) in zip(taps, spans, strict=True)]
        index = _flat_index(chosen, places)
        v = jnp.take(fixed, index, axis=-1)
        better = (v > best) | (v != v)
        return jnp.where(better, v, best), jnp.where(better, index, where)

    if math.prod(widths) <= _MAX_TAPS:
        for taps in itertools.product(*(range(width) for width in widths)):
            best, where = look(taps, best, where)
    else:

        def step(tap: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return look(jnp.unravel_index(tap, widths), *state)

        best, where = lax.fori_loop(0, math.prod(widths), step, (best, where))
    values = jnp.take_along_axis(flat, merged(where, flat.ndim - 1), axis=-1)
    return values.reshape(best.shape), where


def _flat_index(chosen: Sequence[Any], places: Sequence[int]) -> Any:
    """Row-major numbers of a grid of coordinates, int64."""
    index: Any = np.zeros((1,) * len(places), np.int64)
    for d, (axis, length) in enumerate(zip(chosen, places, strict=True)):
        shape = [1] * len(places)
        shape[d] = -1
        index = index * length + axis.reshape(shape)
    return index


def _register(n: int) -> None:
    """Means and maxima over nearly equal spans of the last ``n`` axes."""
    core = () if n == 1 else (f"aten._adaptive_avg_pool{n}d.default",)

    @op(
        *(f"aten.adaptive_avg_pool{n}d.default", *core),
        reads=(),
        flops=("input", 0, 1),
        fusing=Fusing.REDUCES,
    )
    def average(x: jax.Array, size: Sequence[int]) -> jax.Array:
        return _adaptive_average(x, size, n)

    @op(
        f"aten.adaptive_max_pool{n}d.default",
        reads=(0,),
        flops=("input", 0, 1),
        ranges=None if n == 1 else ("pool_places", n),
    )
    def largest(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
        return _adaptive_max(x, size, n)


for _n in (1, 2, 3):
    _register(_n)


# -- max pooling over windows at pseudo-random places --------------------------------
# Where the windows start follows from one random number per sample, channel and axis
# (Graham, "Fractional Max-Pooling", 2014, https://arxiv.org/abs/1412.6071).

Pooled = tuple[jax.Array, jax.Array]


def _starts(sample: jax.Array, size: int, out: int, kernel: int) -> jax.Array:
    """First places of the windows along an axis: ``(..., out)`` for samples ``(...)``.

    Rounded to the samples' dtype after each step, as torch does: a start is a rounded-down product.
    """
    if out == 1:
        return jnp.full((*sample.shape, 1), size - kernel, np.int64)
    dtype = sample.dtype
    alpha = np.asarray(size - kernel, dtype) / np.asarray(out - 1, dtype)

    def rounded(x: jax.Array) -> jax.Array:
        info = jnp.finfo(dtype)
        return lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)

    base = jnp.floor(rounded(sample * alpha)).astype(np.int64)[..., None]
    step = rounded(sample[..., None] + np.arange(out - 1).astype(dtype))
    inner = jnp.floor(rounded(step * alpha)).astype(np.int64) - base
    last = jnp.full((*sample.shape, 1), size - kernel, np.int64)
    return jnp.concatenate([inner, last], axis=-1)


def _pool(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], samples: jax.Array, n: int
) -> Pooled:
    """Maximum of every window over the last ``n`` axes, and its place in their row-major order."""
    lead, space = x.shape[:-n], x.shape[-n:]
    samples = lax.stop_gradient(samples.reshape((*lead, n)))
    place = jnp.zeros((*lead, *(1,) * (2 * n)), np.int64)
    for d in range(n):
        # The last axis takes the first number.
        number = samples[..., n - 1 - d] if n == 2 else samples[..., d]
        start = _starts(number, space[d], out[d], kernel[d])
        inside = start[..., None] + np.arange(kernel[d])
        shape = [*lead, *(1,) * (2 * n)]
        shape[len(lead) + d], shape[len(lead) + n + d] = out[d], kernel[d]
        place = place * space[d] + inside.reshape(shape)
    place = merged(jnp.broadcast_to(place, (*lead, *out, *kernel)), len(lead))
    flat = merged(x, len(lead))
    entries = jnp.take_along_axis(lax.stop_gradient(flat), place, axis=-1)
    taps = entries.reshape((*lead, *out, math.prod(kernel)))
    missing = taps != taps
    number = lax.broadcasted_iota(np.int32, taps.shape, taps.ndim - 1)
    # The first maximum, or the last NaN, as torch scans.
    best = jnp.where(
        jnp.any(missing, axis=-1),
        jnp.max(jnp.where(missing, number, -1), axis=-1),
        jnp.argmax(taps, axis=-1).astype(np.int32),
    )
    index = jnp.take_along_axis(place.reshape(taps.shape), best[..., None], axis=-1)[..., 0]
    values = jnp.take_along_axis(flat, merged(index, len(lead)), axis=-1)
    return values.reshape(index.shape), index


@op("aten.fractional_max_pool2d.default", reads=(0, 3), counted=False)
def fractional_max_pool2d(
    x: jax.Array, kernel_size: Sequence[int], output_size: Sequence[int], samples: jax.Array
) -> Pooled:
    """Maxima of ``(N, C, H, W)`` or ``(C, H, W)`` and where they are.

    Args:
        x: Input.
        kernel_size: Height and width of a window.
        output_size: Windows per axis.
        samples: Numbers in [0, 1), ``(N, C, 2)``: for the width, then for the height.
    """
    return _pool(x, kernel_size, output_size, samples, 2)


@op("aten.fractional_max_pool3d.default", reads=(0, 3), counted=False)
def fractional_max_pool3d(
    x: jax.Array, kernel_size: Sequence[int], output_size: Sequence[int], samples: jax.Array
) -> Pooled:
    """Maxima of ``(N, C, T, H, W)`` or ``(C, T, H, W)`` and where they are.

    ``samples`` is ``(N, C, 3)``, in the order of the axes.
    """
    return _pool(x, kernel_size, output_size, samples, 3)
