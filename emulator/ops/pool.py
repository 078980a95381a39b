"""Lowerings of max and average pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import widen
from emulator.kernels.unfused import in_memory
from emulator.kernels.windows import Window, expand, pad, taps, untaps
from emulator.ops._gradient import with_gradient
from emulator.ops._long_windows import (
    LONG,
    put_back,
    spread_sum,
    window_argmax,
    window_max,
    window_sum,
)
from emulator.ops._reduction import lowest, reduce_kept
from emulator.ops._reshape import merged
from emulator.ops.registry import Channels, ChannelsRule, op

Sizes = int | Sequence[int]

_MAX_TAPS = 9
"""Windows of more positions are pooled one axis after the other."""


def _pool_window(
    n: int,
    x: jax.Array,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Window:
    """The window of a pooling op over the last ``n`` axes, by the arguments that torch gives it.

    Torch drops a last position that starts in the padding.
    """
    kernel = expand(kernel, n)
    stride = kernel if stride in ((), []) else expand(stride, n)
    padding, dilation = expand(padding, n), expand(dilation, n)
    out, high = [], []
    for size, k, s, p, d in zip(x.shape[-n:], kernel, stride, padding, dilation, strict=True):
        span = size + 2 * p - d * (k - 1) - 1
        count = (-(-span // s) if ceil_mode else span // s) + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1
        out.append(count)
        high.append(max(0, (count - 1) * s + d * (k - 1) + 1 - size - p))
    return Window(
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        low=padding,
        high=tuple(high),
        out=tuple(out),
    )


def _first_inside(window: Window, size: tuple[int, ...]) -> np.ndarray:
    """Per output, the row-major number of the first tap that is not padding."""
    first = np.zeros(window.out, np.int32)
    for d in range(window.ndim):
        start = np.arange(window.out[d]) * window.stride[d] - window.low[d]
        tap = np.maximum(-(start // window.dilation[d]), 0).astype(np.int32)
        shape = [1] * window.ndim
        shape[d] = -1
        first = first * window.kernel[d] + tap.reshape(shape)
    return first


def _argmax(x: jax.Array, window: Window, inner: int = 0) -> tuple[jax.Array, jax.Array]:
    """Maximum and the tap that holds it: the first one, or the last NaN, as torch scans."""
    size = x.shape[x.ndim - window.ndim - inner : x.ndim - inner]
    low = lowest(x.dtype)
    slices = taps(pad(x, window, low, inner), window, inner)
    best = jnp.full_like(slices[0], low)
    first = _first_inside(window, size).reshape(*window.out, *(1,) * inner)
    where = jnp.broadcast_to(jnp.asarray(first), best.shape)
    for tap, v in enumerate(slices):
        better = (v > best) | (v != v)
        best = jnp.where(better, v, best)
        where = jnp.where(better, jnp.int32(tap), where)
    return best, where


def _long_axis(window: Window) -> int | None:
    """The axis of a window along one axis that has too many taps to write down; None for others."""
    longest = max(window.kernel)
    return window.kernel.index(longest) if longest > LONG else None


def _max_places(x: jax.Array, window: Window) -> jax.Array:
    """The place of each maximum in the flattened axes of the window, int64; see :func:`_argmax`."""
    n = window.ndim
    size = x.shape[x.ndim - n :]
    place = jnp.arange(math.prod(size)).reshape(size)
    best, where = pad(x, window, lowest(x.dtype)), pad(place, window, -1)
    where = jnp.broadcast_to(where, best.shape)
    for d in reversed(range(n)):
        k, step, stride = window.kernel[d], window.dilation[d], window.stride[d]
        axis = x.ndim - n + d
        best, where = window_argmax(best, where, k, step, stride, window.out[d], axis)
    return where


def _max_pool_backward(window: Window, x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    if _long_axis(window) is not None:
        lead, size = x.shape[: -window.ndim], x.shape[-window.ndim :]
        where = merged(_max_places(x, window), len(lead))
        return (put_back(merged(g, len(lead)), where, math.prod(size)).reshape(x.shape),)
    return (_put_back(x, g, window, 0),)


def _put_back(x: jax.Array, g: jax.Array, window: Window, inner: int) -> jax.Array:
    """Each cotangent where its maximum was."""
    # Else XLA would write every tap to memory, for the forward pass and for this; and it would
    # look for each place once for each tap.
    where = in_memory(_argmax(in_memory(x), window, inner)[1])
    zero = jnp.zeros((), g.dtype)
    parts = [jnp.where(where == tap, g, zero) for tap in range(math.prod(window.kernel))]
    return untaps(parts, window, x.shape[x.ndim - window.ndim - inner : x.ndim - inner], inner)


@with_gradient(_max_pool_backward, static=(1,))
def _max_pool(x: jax.Array, window: Window) -> jax.Array:
    long = _long_axis(window)
    if long is not None:
        wide = pad(x, window, lowest(x.dtype))
        k, step, stride = window.kernel[long], window.dilation[long], window.stride[long]
        return window_max(wide, k, step, stride, window.out[long], x.ndim - window.ndim + long)
    y, *rest = taps(pad(x, window, lowest(x.dtype)), window)
    for v in rest:
        y = jnp.maximum(y, v)
    return y


def _axis_windows(x: jax.Array, window: Window) -> list[Window]:
    """One window per axis, last axis first; pooling by each in turn is pooling by all.

    The first maximum stays the first one: of the rows that hold it the first, and in that
    row the first place.
    """
    size = list(x.shape[-window.ndim :])
    windows = []
    for d in reversed(range(window.ndim)):
        windows.append(window.along(d, tuple(size)))
        size[d] = window.out[d]
    return windows


def _max(x: jax.Array, window: Window) -> jax.Array:
    if math.prod(window.kernel) <= _MAX_TAPS:
        return _max_pool(x, window)
    for part in _axis_windows(x, window):
        x = _max_pool(x, part)
    return x


def _last_backward(window: Window, x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (_put_back(x, g, window, 1),)


@with_gradient(_last_backward, static=(1,))
def _max_pool_last(x: jax.Array, window: Window) -> jax.Array:
    """:func:`_max_pool` of ``(..., C)``, for windows that are written down tap by tap."""
    y, *rest = taps(pad(x, window, lowest(x.dtype), 1), window, 1)
    for v in rest:
        y = jnp.maximum(y, v)
    return y


def _max_last(n: int) -> Callable[..., jax.Array]:
    """Max pooling over ``n`` axes of ``(N, ..., C)``."""

    def lower(x: jax.Array, *how: Any, **named: Any) -> jax.Array:
        second = jnp.moveaxis(x, -1, 1)
        window = _pool_window(n, second, *how, **named)
        if math.prod(window.kernel) <= _MAX_TAPS:
            return _max_pool_last(x, window)
        return jnp.moveaxis(_max(second, window), 1, -1)

    return lower


def _images(n: int) -> ChannelsRule:
    """Batches of images have channels, an image alone has its axes elsewhere."""
    return lambda inputs, output: Channels.ANY if len(output.shape) == n + 2 else None


def _max_with_indices(x: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    n = window.ndim
    if math.prod(window.kernel) > LONG:
        return _max(x, window), _max_places(jax.lax.stop_gradient(x), window)
    _, where = _argmax(jax.lax.stop_gradient(x), window)
    origin, offset = np.zeros(window.out, np.int64), np.zeros(window.kernel, np.int64)
    for d in range(n):
        shape = [1] * n
        shape[d] = -1
        step = math.prod(x.shape[x.ndim - n + d + 1 :])
        start = np.arange(window.out[d]) * window.stride[d] - window.low[d]
        origin = origin + (start * step).reshape(shape)
        offset = offset + (np.arange(window.kernel[d]) * window.dilation[d] * step).reshape(shape)
    indices = jnp.asarray(offset.reshape(-1))[where] + jnp.asarray(origin)
    return _max(x, window), indices


def _register_max(n: int) -> None:
    """Max pooling over the last ``n`` axes, alone and with places."""

    @op(
        f"aten.max_pool{n}d.default",
        reads=(0,),
        channels=_images(n),
        last=_max_last(n),
        flops=("window",),
        scratch="max_pool",
    )
    def max_pool(x: jax.Array, *how: Any, **named: Any) -> jax.Array:
        """Largest value of each window; NaN wins."""
        return _max(x, _pool_window(n, x, *how, **named))

    @op(
        f"aten.max_pool{n}d_with_indices.default",
        reads=(0,),
        flops=("window",),
        scratch=None if n == 1 else "max_pool",
        ranges=("pool_places", n),
    )
    def max_pool_with_indices(x: jax.Array, *how: Any, **named: Any) -> tuple[jax.Array, jax.Array]:
        """Max pooling and the int64 place of each maximum in the flattened axes."""
        return _max_with_indices(x, _pool_window(n, x, *how, **named))


def _sum_pool_backward(
    window: Window, size: tuple[int, ...], _saved: None, g: jax.Array
) -> tuple[jax.Array]:
    long = _long_axis(window)
    if long is not None:
        k, step, stride = window.kernel[long], window.dilation[long], window.stride[long]
        axis, low = g.ndim - window.ndim + long, window.low[long]
        wide = spread_sum(g, k, step, stride, size[long] + low + window.high[long], axis)
        return (jax.lax.slice_in_dim(wide, low, low + size[long], axis=axis),)
    return (untaps([g] * math.prod(window.kernel), window, size),)


@with_gradient(_sum_pool_backward, saves=lambda _y, *_: None, static=(1, 2))
def _sum_pool(x: jax.Array, window: Window, size: tuple[int, ...]) -> jax.Array:
    long = _long_axis(window)
    if long is not None:
        wide = pad(x, window, 0)
        k, step, stride = window.kernel[long], window.dilation[long], window.stride[long]
        return window_sum(wide, k, step, stride, window.out[long], x.ndim - window.ndim + long)
    y, *rest = taps(pad(x, window, 0), window)
    for v in rest:
        y = y + v
    return y


def _divisor(x: jax.Array, window: Window, padding: tuple[int, ...], counted: bool) -> np.ndarray:
    """Elements per window: those inside the data, or inside data and padding if ``counted``."""
    n = window.ndim
    divisor = np.ones((1,) * n)
    for d in range(n):
        size, p = x.shape[x.ndim - n + d], padding[d]
        start = np.arange(window.out[d]) * window.stride[d] - p
        stop = np.minimum(start + window.kernel[d], size + p)
        if not counted:
            start, stop = np.maximum(start, 0), np.minimum(stop, size)
        shape = [1] * n
        shape[d] = -1
        divisor = divisor * (stop - start).reshape(shape)
    return divisor


def _register_average(n: int) -> None:
    """Average pooling over the last ``n`` axes; over one axis torch takes no divisor."""

    @op(f"aten.avg_pool{n}d.default", reads=(), flops=("window",))
    def avg_pool(
        x: jax.Array,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> jax.Array:
        """Mean of each window."""
        window = _pool_window(n, x, kernel, stride, padding, 1, ceil_mode)
        if divisor_override is None:
            divisor = _divisor(x, window, window.low, count_include_pad)
        else:
            divisor = np.asarray(float(divisor_override))
        y = widen(x)
        if window.kernel == x.shape[-n:] and math.prod(window.out) == 1 and not any(window.low):
            y = reduce_kept(y, tuple(range(x.ndim - n, x.ndim)))
        else:
            for part in _axis_windows(x, window):
                y = _sum_pool(y, part, y.shape[-n:])
        if divisor.min() == divisor.max():
            return (y / float(divisor.flat[0])).astype(x.dtype)
        return (y / jnp.asarray(divisor, y.dtype)).astype(x.dtype)


for _n in (1, 2, 3):
    _register_max(_n)
    _register_average(_n)
