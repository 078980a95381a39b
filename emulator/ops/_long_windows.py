"""Sums and maxima over long windows along one axis, by doubling.

Tap by tap the code grows with the window. Here a window of ``2 n`` places is two of ``n``, so
that it grows with the logarithm of the length.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.slices import strided

LONG = 64
"""Windows of more places along an axis, or of more taps in all, are long."""


def _cut(x: jax.Array, start: int, length: int, axis: int, stride: int = 1) -> jax.Array:
    stop = start + (length - 1) * stride + 1
    return strided(x, start, stop, stride, axis)


def window_max(x: jax.Array, k: int, step: int, stride: int, out: int, axis: int) -> jax.Array:
    """The largest value of each window; NaN wins.

    Args:
        x: Padded data.
        k: Places of a window.
        step: Distance of two places.
        stride: Distance of two windows.
        out: Number of windows.
        axis: The axis that they slide along.

    Returns:
        ``x`` with ``out`` elements along ``axis``.
    """
    n = 1
    while n < k:
        more = min(n, k - n)
        length = x.shape[axis] - more * step
        x = jnp.maximum(_cut(x, 0, length, axis), _cut(x, more * step, length, axis))
        n += more
    return _cut(x, 0, out, axis, stride)


def window_argmax(
    x: jax.Array, place: jax.Array, k: int, step: int, stride: int, out: int, axis: int
) -> tuple[jax.Array, jax.Array]:
    """The largest value of each window and its place: the first one, or the last NaN.

    Args:
        x, k, step, stride, out, axis: As :func:`window_max` takes them.
        place: What to call each element; -1 for padding, which any element goes before.

    Returns:
        Values and places, with ``out`` elements along ``axis``.
    """
    n = 1
    while n < k:
        more = min(n, k - n)
        length = x.shape[axis] - more * step
        v, w = _cut(x, 0, length, axis), _cut(x, more * step, length, axis)
        at_v, at_w = _cut(place, 0, length, axis), _cut(place, more * step, length, axis)
        second = (at_w >= 0) & ((at_v < 0) | (w > v) | (w != w))
        x, place = jnp.where(second, w, v), jnp.where(second, at_w, at_v)
        n += more
    return _cut(x, 0, out, axis, stride), _cut(place, 0, out, axis, stride)


def window_sum(x: jax.Array, k: int, step: int, stride: int, out: int, axis: int) -> jax.Array:
    """The sum of each window; arguments and result as those of :func:`window_max`."""
    length = x.shape[axis] - (k - 1) * step
    total: jax.Array | None = None
    done, n, parts = 0, 1, x  # parts: sums over n places
    while True:
        if k & n:
            term = _cut(parts, done * step, length, axis)
            total = term if total is None else total + term
            done += n
        if 2 * n > k:
            break
        reach = parts.shape[axis] - n * step
        parts = _cut(parts, 0, reach, axis) + _cut(parts, n * step, reach, axis)
        n *= 2
    assert total is not None  # k is positive: some bit is set
    return _cut(total, 0, out, axis, stride)


def spread_sum(g: jax.Array, k: int, step: int, stride: int, whole: int, axis: int) -> jax.Array:
    """Each entry added to all places of its window: the transpose of :func:`window_sum`.

    Args:
        g: One entry for each window.
        k, step, stride, axis: As :func:`window_max` takes them.
        whole: Length of the padded data.

    Returns:
        ``g`` with ``whole`` elements along ``axis``.
    """
    reach = (k - 1) * step
    config = [(0, 0, 0)] * g.ndim
    config[axis] = (reach, whole - ((g.shape[axis] - 1) * stride + 1), stride - 1)
    wide = lax.pad(g, jnp.zeros((), g.dtype), config)
    return window_sum(wide, k, step, 1, whole, axis)


def window_places(k: int, step: int, stride: int, out: int) -> np.ndarray:
    """Where each place of each window lies in the padded data: ``(k, out)``."""
    return np.arange(k)[:, None] * step + np.arange(out)[None, :] * stride


def put_back(g: Any, place: jax.Array, size: int) -> jax.Array:
    """Entries added where they were taken from.

    Args:
        g: Entries ``(..., n)``.
        place: Their places below ``size``, of the same shape; negative ones are left out.
        size: Length of a row.

    Returns:
        Rows ``(..., size)``.
    """
    rows, n = int(np.prod(g.shape[:-1])), g.shape[-1]
    at = jnp.where(place < 0, size, place).reshape(rows, n)
    row = jnp.broadcast_to(jnp.arange(rows)[:, None], at.shape)
    empty = jnp.zeros((rows, size), g.dtype)
    return empty.at[row, at].add(g.reshape(rows, n), mode="drop").reshape(*g.shape[:-1], size)
