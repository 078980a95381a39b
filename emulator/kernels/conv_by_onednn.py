"""Convolutions and their gradients by oneDNN, and by products of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.onednn import Axes, Slide, convolution, matmul
from emulator.kernels.precision import widen
from emulator.kernels.windows import Window, pad, reversed_taps, taps, turned

__all__ = [
    "convolve_onednn",
    "input_gradient_by_phases",
    "input_gradient_onednn",
    "weight_gradient_by_taps",
]


def _last(ndim: int) -> Axes:
    """Data that lie channels last, the order in which stretches of convolutions run."""
    return Axes(outer=0, inner=ndim + 1, spatial=tuple(range(1, ndim + 1)))


def _slide(
    x: jax.Array,
    w: jax.Array,
    kernel: Axes,
    window: Window,
    groups: int,
) -> jax.Array:
    """A convolution of ``(N, ..., C)``, the axes of whose kernel lie as ``kernel`` says."""
    last = _last(window.ndim)
    x, window = _cropped(x, _unstrided(window, x.shape[1:-1]))
    config = Slide(
        x=last,
        w=kernel,
        y=last,
        stride=window.stride,
        dilation=window.dilation,
        low=window.low,
        high=window.high,
        groups=groups,
        shape=(x.shape[0], *window.out, w.shape[kernel.inner]),
    )
    return convolution(x, w, config)


def convolve_onednn(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolution of ``(N, C, ...)`` with ``(O, C / groups, ...)``, in float32 for narrow types."""
    kernel = Axes(outer=1, inner=0, spatial=tuple(range(2, 2 + window.ndim)))
    y = _slide(jnp.moveaxis(widen(x), 1, -1), widen(w), kernel, window, groups)
    return jnp.moveaxis(y, -1, 1)


def _turned(w: jax.Array, groups: int) -> tuple[jax.Array, Axes]:
    """Kernels ``(O, C / groups, ...)`` with their taps in reverse, and which axis is what.

    oneDNN is told that inputs and outputs change places: to exchange them in memory takes longer
    than many a convolution. Groups have to be.
    """
    spatial = tuple(range(2, w.ndim))
    if groups == 1:
        return reversed_taps(widen(w)), Axes(outer=0, inner=1, spatial=spatial)
    return turned(widen(w), groups), Axes(outer=1, inner=0, spatial=spatial)


def _back(
    g: jax.Array, w: jax.Array, low: tuple[int, ...], out: tuple[int, ...], groups: int,
    dilation: tuple[int, ...],
) -> jax.Array:  # fmt: skip
    """Slide turned kernels over cotangents ``(N, ..., O)``, so much before the first of them."""
    kernels, axes = _turned(w, groups)
    n = len(out)
    kernel = kernels.shape[2:]
    high = tuple(
        o + d * (k - 1) - lo - size
        for o, d, k, lo, size in zip(out, dilation, kernel, low, g.shape[1:-1], strict=True)
    )
    ones = (1,) * n
    window = Window(kernel=kernel, stride=ones, dilation=dilation, low=low, high=high, out=out)
    return _slide(g, kernels, axes, window, groups)


def _unstrided(window: Window, size: tuple[int, ...]) -> Window:
    """Along axes with one position there is no step to the next, and nothing read after it.

    With a stride there, oneDNN's AVX-512 kernel for one channel reads memory that is none of the
    data's (jaxlib 0.10).
    """
    rows = zip(
        window.out, window.stride, window.dilation, window.kernel, window.low, window.high, size,
        strict=True,
    )  # fmt: skip
    axes = [
        (1, d * (k - 1) + 1 - n - low) if o == 1 else (s, high) for o, s, d, k, low, high, n in rows
    ]
    return replace(window, stride=tuple(a[0] for a in axes), high=tuple(a[1] for a in axes))


def _cropped(x: jax.Array, window: Window) -> tuple[jax.Array, Window]:
    """Padding as oneDNN's kernels know it: not negative, and no window sees nothing else.

    The rest is cut off, or added to the data, beforehand.
    """
    reach = [d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True)]
    low = tuple(min(max(lo, 0), r) for lo, r in zip(window.low, reach, strict=True))
    high = tuple(min(max(hi, 0), r) for hi, r in zip(window.high, reach, strict=True))
    if (low, high) == (window.low, window.high):
        return x, window
    rest = [
        (lo - at_start, hi - at_end, 0)
        for lo, at_start, hi, at_end in zip(window.low, low, window.high, high, strict=True)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *rest, (0, 0, 0)])
    return x, replace(window, low=low, high=high)


def input_gradient_onednn(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """Input gradient for strides of one: turned kernels slide over the cotangent."""
    reach = [d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True)]
    low = tuple(r - lo for r, lo in zip(reach, window.low, strict=True))
    g = jnp.moveaxis(widen(g), 1, -1)
    dx = _back(g, w, low, size, groups, window.dilation)
    return jnp.moveaxis(dx, -1, 1)


def input_gradient_by_phases(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """Input gradient for larger strides: a convolution for each residue of places, put together.

    Places of one residue modulo the stride see the same taps, so that no product is with a zero
    that spreads the cotangent. Windows are not dilated.
    """
    n = window.ndim
    g = jnp.moveaxis(widen(g), 1, -1)
    channels = w.shape[1] * groups
    padded = [s + lo for s, lo in zip(size, window.low, strict=True)]
    out = tuple(-(-p // s) for p, s in zip(padded, window.stride, strict=True))
    phases = []
    for phase in itertools.product(*(range(s) for s in window.stride)):
        cut = (slice(None), slice(None), *(slice(r, None, s) for r, s in
               zip(phase, window.stride, strict=True)))  # fmt: skip
        part = w[cut]
        if not part.size:
            phases.append(jnp.zeros((g.shape[0], *out, channels), g.dtype))
            continue
        low = tuple(k - 1 for k in part.shape[2:])
        phases.append(_back(g, part, low, out, groups, (1,) * n))
    y = jnp.stack(phases).reshape(*window.stride, g.shape[0], *out, channels)
    order = [n, *(axis for d in range(n) for axis in (n + 1 + d, d)), 2 * n + 1]
    whole = [o * s for o, s in zip(out, window.stride, strict=True)]
    y = y.transpose(order).reshape(g.shape[0], *whole, channels)
    start = (0, *window.low, 0)
    stop = (g.shape[0], *(lo + s for lo, s in zip(window.low, size, strict=True)), channels)
    return jnp.moveaxis(lax.slice(y, start, stop), -1, 1)


def weight_gradient_by_taps(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """Kernel gradient of one group: a product for each tap, of what it saw with the cotangent."""
    del groups
    data = pad(jnp.moveaxis(x, 1, -1), window, 0, inner=1)
    rows = x.shape[0] * math.prod(window.out)
    right = jnp.moveaxis(g.astype(x.dtype), 1, -1).reshape(rows, shape[0])
    parts = [
        matmul(right, tap.reshape(rows, shape[1]), turned_a=True, dtype=jnp.float32)
        for tap in taps(data, window, inner=1)
    ]
    return jnp.stack(parts, axis=-1).reshape(shape)
