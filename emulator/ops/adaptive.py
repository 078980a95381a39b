"""Lowerings of pooling to a given output size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._precision import widen
from emulator.ops._resample import resample, table
from emulator.ops.pool import lowest
from emulator.ops.registry import op


def _spans(size: int, out: int) -> list[range]:
    """Spans of adaptive pooling: from the floor of ``i * size / out`` to the next's ceiling."""
    return [range(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_average(x: jax.Array, size: Sequence[int | None], n: int) -> jax.Array:
    y = widen(x)
    for d, out in enumerate(size):
        axis = x.ndim - n + d
        length = x.shape[axis]
        if out is None or out == length:
            continue
        if length % out == 0:
            split = y.reshape(*y.shape[:axis], out, length // out, *y.shape[axis + 1 :])
            y = jnp.sum(split, axis=axis + 1) / (length // out)
        else:
            spans = _spans(length, out)
            y = resample(y, table([[(i, 1 / len(s)) for i in s] for s in spans], length), axis)
    return y.astype(x.dtype)


@op("aten.adaptive_avg_pool1d.default", reads=())
def adaptive_avg_pool1d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last axis."""
    return _adaptive_average(x, size, 1)


@op("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default", reads=())
def adaptive_avg_pool2d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last two axes."""
    return _adaptive_average(x, size, 2)


@op("aten.adaptive_avg_pool3d.default", "aten._adaptive_avg_pool3d.default", reads=())
def adaptive_avg_pool3d(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """Means over ``size`` nearly equal spans of the last three axes."""
    return _adaptive_average(x, size, 3)


def _adaptive_max(x: jax.Array, size: Sequence[int], n: int) -> tuple[jax.Array, jax.Array]:
    """Largest values and their places in the flattened last n axes; the last NaN wins."""
    places = x.shape[x.ndim - n :]
    spans = [_spans(length, out) for length, out in zip(places, size, strict=True)]
    flat = x.reshape(*x.shape[: x.ndim - n], math.prod(places))
    fixed = lax.stop_gradient(flat)
    best = jnp.full((*flat.shape[:-1], *size), lowest(x.dtype), x.dtype)
    first = _flat_index([[s[0] for s in axis] for axis in spans], places)
    where = jnp.broadcast_to(jnp.asarray(first), best.shape)
    for taps in itertools.product(*(range(max(map(len, axis))) for axis in spans)):
        chosen = [
            [s[min(t, len(s) - 1)] for s in axis] for t, axis in zip(taps, spans, strict=True)
        ]
        index = _flat_index(chosen, places)
        v = jnp.take(fixed, jnp.asarray(index), axis=-1)
        better = (v > best) | (v != v)
        best, where = jnp.where(better, v, best), jnp.where(better, index, where)
    values = jnp.take_along_axis(flat, where.reshape(*flat.shape[:-1], -1), axis=-1)
    return values.reshape(best.shape), where


def _flat_index(chosen: Sequence[Sequence[int]], places: Sequence[int]) -> np.ndarray:
    """Row-major numbers of a grid of coordinates."""
    index = np.zeros((1,) * len(places), np.int64)
    for d, (axis, length) in enumerate(zip(chosen, places, strict=True)):
        shape = [1] * len(places)
        shape[d] = -1
        index = index * length + np.asarray(axis, np.int64).reshape(shape)
    return index


@op("aten.adaptive_max_pool1d.default", reads=(0,))
def adaptive_max_pool1d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last axis."""
    return _adaptive_max(x, size, 1)


@op("aten.adaptive_max_pool2d.default", reads=(0,))
def adaptive_max_pool2d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last two axes."""
    return _adaptive_max(x, size, 2)


@op("aten.adaptive_max_pool3d.default", reads=(0,))
def adaptive_max_pool3d(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Largest values and their int64 places over spans of the last three axes."""
    return _adaptive_max(x, size, 3)
