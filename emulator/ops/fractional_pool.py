"""Lowerings of max pooling over windows at pseudo-random places.

Where the windows start follows from one random number per sample, channel and axis
(Graham, "Fractional Max-Pooling", 2014, https://arxiv.org/abs/1412.6071).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._reshape import merged
from emulator.ops.registry import op

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
    found = jnp.take_along_axis(lax.stop_gradient(flat), place, axis=-1)
    taps = found.reshape((*lead, *out, math.prod(kernel)))
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
