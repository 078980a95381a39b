"""Lowerings that sample images at arbitrary places (spatial transformers)."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widened
from emulator.ops._reshape import merged
from emulator.ops.registry import op

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
"""ATen's numbers for ``interpolation_mode``."""
ZEROS, BORDER, REFLECTION = 0, 1, 2
"""ATen's numbers for ``padding_mode``."""


def _to_pixels(at: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Coordinates in [-1, 1] as positions between pixels."""
    if align_corners:
        return (at + 1) / 2 * (size - 1)
    return ((at + 1) * size - 1) / 2


def _clipped(at: jax.Array, size: int) -> jax.Array:
    """Positions moved into the image; those on its edge or outside pass no gradient.

    NaN is moved to 0, as torch's processor instructions do it.
    """
    inside = (at > 0) & (at < size - 1)
    return jnp.where(inside, at, jnp.where(at > 0, float(size - 1), 0.0).astype(at.dtype))


def _padded(at: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    """Positions outside the image moved to where the padding mode reads."""
    if padding == ZEROS:
        return at
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return jnp.zeros_like(at)
        # A triangle wave of period 2 * span.
        distance = jnp.where(at >= low, at - low, low - at)
        flips = lax.stop_gradient(jnp.floor(distance / span))
        rest = distance - flips * span
        at = jnp.where(flips % 2 == 0, rest, span - rest) + low
    return _clipped(at, size)


def _read(x: jax.Array, places: list[jax.Array]) -> jax.Array:
    """``x[n, c, places...]`` for integral places ``(N, *out)``; 0 outside the image."""
    sizes = x.shape[2:]
    valid = jnp.ones(places[0].shape, bool)
    flat = jnp.zeros(places[0].shape, jnp.int32)
    for at, size in zip(places, sizes, strict=True):
        valid &= (at >= 0) & (at <= size - 1)
        flat = flat * size + jnp.clip(at, 0, size - 1).astype(jnp.int32)
    n, c = x.shape[:2]
    values = jnp.take_along_axis(
        x.reshape(n, c, math.prod(sizes)), merged(flat[:, None], 2), axis=2
    ).reshape(n, c, *flat.shape[1:])
    return jnp.where(valid[:, None], values, 0)


def _linear(x: jax.Array, at: list[jax.Array]) -> jax.Array:
    low = [lax.stop_gradient(jnp.floor(a)) for a in at]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight = jnp.ones((), x.dtype)
        for up, a, lo in zip(corner, at, low, strict=True):
            weight = weight * (a - lo if up else 1 - (a - lo))
        places = [lo + up for up, lo in zip(corner, low, strict=True)]
        total = total + _read(x, places) * weight[:, None]
    return total


def _cubic_weights(part: jax.Array) -> list[jax.Array]:
    """Cubic convolution with a = -0.75 (Keys 1981), for the pixels at -1, 0, 1 and 2."""
    a = -0.75

    def near(t: jax.Array) -> jax.Array:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: jax.Array) -> jax.Array:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _cubic(x: jax.Array, at: list[jax.Array], padding: int, align_corners: bool) -> jax.Array:
    low = [lax.stop_gradient(jnp.floor(a)) for a in at]
    weights = [_cubic_weights(a - lo) for a, lo in zip(at, low, strict=True)]
    total = jnp.zeros((), x.dtype)
    for taps in itertools.product(range(4), repeat=2):
        places = [
            _padded(lo + (tap - 1), size, padding, align_corners)
            for tap, lo, size in zip(taps, low, x.shape[2:], strict=True)
        ]
        weight = weights[0][taps[0]] * weights[1][taps[1]]
        total = total + _read(x, places) * weight[:, None]
    return total


@op("aten.grid_sampler.default", "aten.grid_sampler_2d.default", flops=("results", 8))
@op("aten.grid_sampler_3d.default", flops=("results", 16))
@widened
def grid_sampler(
    x: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """Sample ``(N, C, ...)`` at the places that a grid ``(N, *out, 2 or 3)`` names.

    The grid counts from -1 to 1 along each axis, the last axis first.
    """
    sizes = x.shape[2:]
    at = [
        _to_pixels(grid[..., len(sizes) - 1 - d], size, align_corners)
        for d, size in enumerate(sizes)
    ]
    if interpolation_mode == BICUBIC:
        return _cubic(x, at, padding_mode, align_corners)
    at = [_padded(a, size, padding_mode, align_corners) for a, size in zip(at, sizes, strict=True)]
    if interpolation_mode == NEAREST:
        return _read(x, [lax.stop_gradient(jnp.round(a)) for a in at])
    return _linear(x, at)
