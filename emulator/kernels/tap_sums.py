"""Kernel gradients of single channels, tap by tap, as sums of products of elements.

A tap's gradient is the sum, over all places that it was used at, of what it saw there times the
cotangent. With channels last that is elementwise work on whole slices, which XLA:CPU runs with
vector instructions on all cores; as a product of matrices it has one row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen
from emulator.kernels.slices import fold_middle, pairwise, strided
from emulator.kernels.unfused import compile_apart, in_memory
from emulator.kernels.windows import Window

_IMAGES = 16
"""Images whose products are added in one pass (8 to 16 measured alike)."""

_Span = tuple[int, int, int]
"""First, last and step of a slice."""


def weight_gradient_by_tap_sums(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """Kernel gradient of a convolution of single channels.

    Args:
        x: Data ``(N, C, ...)``.
        g: Cotangent of the result, ``(N, O, ...)``.
        window: The window.
        groups: Feature groups: C.
        shape: Of the kernels, ``(O, 1, ...)``.

    Returns:
        An array of that shape, float32 for narrow types.
    """
    data, cotangent = jnp.moveaxis(x, 1, -1), jnp.moveaxis(g, 1, -1)
    features = shape[0] // groups
    cotangent = cotangent.reshape(*cotangent.shape[:-1], groups, features)
    parts = compile_apart(_sums(window), data[..., None], cotangent)
    return jnp.stack(parts, axis=-1).reshape(shape)


@functools.cache
def _sums(window: Window) -> Callable[[jax.Array, jax.Array], list[jax.Array]]:
    """The sums of all taps, the same function for equal windows."""

    def run(x: jax.Array, g: jax.Array) -> list[jax.Array]:
        x, g = widen(x), widen(g)
        return [_tap(x, g, seen) for seen in _places(window, x.shape[1:-2])]

    return run


def _places(window: Window, size: Sequence[int]) -> Iterator[list[tuple[_Span, _Span]]]:
    """For each tap, the places of data and of results at which it met data and no padding."""
    for position in window.positions():
        spans = []
        for d, tap in enumerate(position):
            step, count = window.stride[d], window.out[d]
            offset = tap * window.dilation[d] - window.low[d]
            first = max(0, -(offset // step))
            stop = min(count, (size[d] - 1 - offset) // step + 1)
            if stop <= first:  # it saw nothing but padding
                spans.append(((0, 0, 1), (0, 0, 1)))
                continue
            apart = step if stop > first + 1 else 1  # as in `strided`
            data = first * step + offset, (stop - 1) * step + offset + 1, apart
            spans.append((data, (first, stop, 1)))
        yield spans


def _cut(a: jax.Array, spans: Sequence[_Span]) -> jax.Array:
    whole = [(0, a.shape[0], 1), *spans, *((0, n, 1) for n in a.shape[-2:])]
    return lax.slice(a, *zip(*whole, strict=True))


def _tap(x: jax.Array, g: jax.Array, spans: Sequence[tuple[_Span, _Span]]) -> jax.Array:
    """``(C, O / C)``: the sum of products over the places of one tap."""
    x, g = _cut(x, [data for data, _ in spans]), _cut(g, [out for _, out in spans])
    shape = g.shape[-2:]
    if not g.size:
        return jnp.zeros(shape, g.dtype)
    whole = g.shape[0] - g.shape[0] % _IMAGES
    sums: list[jax.Array] = []
    if whole:
        parts = [
            strided(x, n, whole, _IMAGES, 0) * strided(g, n, whole, _IMAGES, 0)
            for n in range(_IMAGES)
        ]
        sums.append(_places_summed(parts))
    if whole < g.shape[0]:
        parts = [x[n] * g[n] for n in range(whole, g.shape[0])]
        sums.append(_places_summed(parts))
    return pairwise(sums, lax.add)


def _places_summed(parts: Sequence[jax.Array]) -> jax.Array:
    """The sum of arrays ``(..., C, O / C)`` over all but their last two axes."""
    shape = parts[0].shape[-2:]
    # Else XLA makes one loop of two passes, with the loads of both.
    total = in_memory(pairwise(parts, lax.add))
    return fold_middle(total.reshape(1, -1, math.prod(shape)), lax.add).reshape(shape)
