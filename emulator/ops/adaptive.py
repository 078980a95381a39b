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
from emulator.op_facts.fusing import Fusing
from emulator.ops._reduction import reduce_sum
from emulator.ops._resample import Table, check_places, resample, span_entries
from emulator.ops._reshape import merged
from emulator.ops.pool import lowest
from emulator.ops.registry import op


def _spans(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and lengths of spans: from the floor of ``i * size / out`` to the next's ceiling."""
    i = np.arange(out, dtype=np.int64)
    first = i * size // out
    return first, -(-(i + 1) * size // out) - first


def _adaptive_average(x: jax.Array, size: Sequence[int | None], n: int) -> jax.Array:
    lead = x.shape[: x.ndim - n]
    if 0 in (*lead, *size):
        kept = [x.shape[x.ndim - n + d] if out is None else out for d, out in enumerate(size)]
        return jnp.zeros((*lead, *kept), x.dtype)
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


@op("aten.adaptive_avg_pool1d.default", reads=(), flops=("input", 0, 1), fusing=Fusing.REDUCES)
def adaptive_avg_pool1d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last axis."""
    return _adaptive_average(x, size, 1)


@op(
    *("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default"),
    reads=(),
    flops=("input", 0, 1),
    fusing=Fusing.REDUCES,
)
def adaptive_avg_pool2d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last two axes."""
    return _adaptive_average(x, size, 2)


@op(
    *("aten.adaptive_avg_pool3d.default", "aten._adaptive_avg_pool3d.default"),
    reads=(),
    flops=("input", 0, 1),
    fusing=Fusing.REDUCES,
)
def adaptive_avg_pool3d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last three axes."""
    return _adaptive_average(x, size, 3)


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


@op("aten.adaptive_max_pool1d.default", reads=(0,), flops=("input", 0, 1))
def adaptive_max_pool1d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last axis."""
    return _adaptive_max(x, size, 1)


@op(
    "aten.adaptive_max_pool2d.default", reads=(0,), flops=("input", 0, 1), ranges=("pool_places", 2)
)
def adaptive_max_pool2d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last two axes."""
    return _adaptive_max(x, size, 2)


@op(
    "aten.adaptive_max_pool3d.default", reads=(0,), flops=("input", 0, 1), ranges=("pool_places", 3)
)
def adaptive_max_pool3d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last three axes."""
    return _adaptive_max(x, size, 3)
