"""Lowerings that cut windows out of images, add them back, or undo max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.windows import Window, expand, pad, taps, untaps
from emulator.ops._long_windows import LONG, put_back, window_places
from emulator.ops._reshape import merged
from emulator.ops.registry import op
from emulator.ops.scatter import put

Sizes = int | Sequence[int]


def _window(
    size: tuple[int, ...], kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Window:
    kernel, dilation = expand(kernel, 2), expand(dilation, 2)
    padding, stride = expand(padding, 2), expand(stride, 2)
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    )
    return Window(
        kernel=kernel, stride=stride, dilation=dilation, low=padding, high=padding, out=out
    )


def _columns(x: jax.Array, window: Window) -> jax.Array:
    """All taps of padded images, ``(..., taps, *out)``."""
    if math.prod(window.kernel) <= LONG:
        return jnp.stack(taps(x, window), axis=-3)
    rows, columns = _places(window)
    x = jnp.take(x, rows, axis=-2)  # (..., k, out, W)
    x = jnp.take(x, columns, axis=-1)  # (..., k, out, other k, out)
    x = jnp.moveaxis(x, -2, -3)
    return x.reshape(*x.shape[:-4], math.prod(window.kernel), *window.out)


def _places(window: Window) -> list[np.ndarray]:
    """Where each place of each window lies in padded data, ``(k, out)`` for each axis."""
    axes = zip(window.kernel, window.dilation, window.stride, window.out, strict=True)
    return [window_places(*axis) for axis in axes]


@op("aten.im2col.default", cheap=False, moves=True)
def im2col(
    x: jax.Array, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> jax.Array:
    """Windows of ``(N, C, H, W)`` as columns ``(N, C * kernel, places)``."""
    window = _window(x.shape[-2:], kernel, dilation, padding, stride)
    columns = _columns(pad(x, window, 0), window)
    channels = x.shape[-3] * math.prod(window.kernel)
    return columns.reshape(*x.shape[:-3], channels, math.prod(window.out))


@op("aten.col2im.default", reads=(), complex=True, flops=("input", 0, 1))
def col2im(
    columns: jax.Array,
    size: Sequence[int],
    kernel: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> jax.Array:
    """Columns ``(N, C * kernel, places)`` added up to images ``(N, C, *size)``."""
    window = _window((size[0], size[1]), kernel, dilation, padding, stride)
    count = math.prod(window.kernel)
    lead = columns.shape[:-2]
    parts = columns.reshape(*lead, columns.shape[-2] // count, count, *window.out)
    if count > LONG:
        return _added(parts, window, size)
    split = [parts[..., i, :, :] for i in range(count)]
    return untaps(split, window, (size[0], size[1]))


def _added(parts: jax.Array, window: Window, size: Sequence[int]) -> jax.Array:
    """The transpose of :func:`_columns`, and of the padding before it."""
    parts = parts.reshape(*parts.shape[:-3], *window.kernel, *window.out)
    inside = []
    for places, low, n in zip(_places(window), window.low, size, strict=True):
        at = places - low
        inside.append(np.where((at >= 0) & (at < n), at, -1))
    rows, columns = inside[0][:, None, :, None], inside[1][None, :, None, :]
    at = np.where((rows < 0) | (columns < 0), -1, rows * size[1] + columns).reshape(-1)
    flat = merged(parts, parts.ndim - 4)
    place = jnp.broadcast_to(jnp.asarray(at), flat.shape)
    return put_back(flat, place, size[0] * size[1]).reshape(*flat.shape[:-1], *size)


def _unpool(x: jax.Array, indices: jax.Array, size: Sequence[int], n: int) -> jax.Array:
    """Put values at their places in a zero plane; of equal places the last one wins."""
    lead = x.shape[: x.ndim - n]
    rows = math.prod(lead)
    flat = jnp.zeros((rows, math.prod(size)), x.dtype)
    places = math.prod(x.shape[x.ndim - n :])
    at = indices.reshape(rows, places)
    row = jnp.broadcast_to(jnp.arange(rows)[:, None], at.shape)
    return put(flat, (row, at), x.reshape(rows, places)).reshape(*lead, *size)


@op("aten.max_unpool2d.default", reads=(1,), moves=True, complex=False, indices="pooled")
def max_unpool2d(x: jax.Array, indices: jax.Array, size: Sequence[int]) -> jax.Array:
    """Values of a max pooling back at the places it took them from."""
    return _unpool(x, indices, size, 2)


@op("aten.max_unpool3d.default", reads=(1,), moves=True, complex=False, indices="pooled")
def max_unpool3d(
    x: jax.Array,
    indices: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> jax.Array:
    """Values of a max pooling back at the places it took them from."""
    return _unpool(x, indices, size, 3)
