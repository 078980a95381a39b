"""Convolutions and their gradients by XLA's own code, products and sums of scaled taps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen
from emulator.kernels.products import product
from emulator.kernels.slices import fold_middle, pairwise, strided
from emulator.kernels.unfused import compile_apart, in_memory
from emulator.kernels.windows import (
    Window,
    overlap_add,
    overlap_add_rows,
    pad,
    stack_taps,
    taps,
    turned,
)

_ROW, _MANY_ROWS = 16, 64
"""Batch size from which, and image size up to which, an overlap-add goes row by row."""


def convolve(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolution of ``(N, C, ...)`` with ``(O, C / groups, ...)``, in float32 for narrow types."""
    # Channels last is the order in which XLA:CPU convolves; asked for another it moves more.
    last = lax.ConvDimensionNumbers(
        lhs_spec=(0, window.ndim + 1, *range(1, window.ndim + 1)),
        rhs_spec=(window.ndim + 1, window.ndim, *range(window.ndim)),
        out_spec=(0, window.ndim + 1, *range(1, window.ndim + 1)),
    )
    # XLA:CPU has no fast kernel for half types: the product of their float32 copies is exact.
    y = lax.conv_general_dilated(
        jnp.moveaxis(widen(x), 1, -1),
        jnp.moveaxis(widen(w), (0, 1), (-1, -2)),
        window.stride,
        list(zip(window.low, window.high, strict=True)),
        rhs_dilation=window.dilation,
        dimension_numbers=last,
        feature_group_count=groups,
    )
    return jnp.moveaxis(y, -1, 1)


def input_gradient(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its data, of spatial sizes ``size``."""
    wide = widen(w)
    x = jax.ShapeDtypeStruct((g.shape[0], w.shape[1] * groups, *size), wide.dtype)
    (dx,) = jax.linear_transpose(lambda v: convolve(v, wide, window, groups), x)(widen(g))
    return dx


def input_gradient_of_integers(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """The same for integers, which jax does not transpose: turned kernels over inflated ``g``."""
    n = window.ndim
    sides: list[tuple[int, int]] = []
    for a in range(n):
        reach = window.dilation[a] * (window.kernel[a] - 1)
        low = reach - window.low[a]
        inflated = (window.out[a] - 1) * window.stride[a] + 1
        sides.append((low, size[a] + reach - low - inflated))
    return lax.conv_general_dilated(
        g,
        turned(w, groups),
        (1,) * n,
        sides,
        lhs_dilation=window.stride,
        rhs_dilation=window.dilation,
        feature_group_count=groups,
    )


def weight_gradient(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its kernel, of shape ``shape``."""
    wide = widen(x)
    w = jax.ShapeDtypeStruct(shape, wide.dtype)
    (dw,) = jax.linear_transpose(lambda v: convolve(wide, v, window, groups), w)(widen(g))
    return dw


def convolve_depthwise(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """A convolution of single channels, as sums of scaled taps.

    XLA:CPU runs grouped convolutions element by element: this is 50 times as fast.
    """
    features = w.shape[0] // groups
    wide = pad(jnp.moveaxis(widen(x), 1, -1), window, 0, inner=1)[..., None]
    scales = widen(w).reshape(groups, features, -1)
    y = sum(tap * scales[:, :, t] for t, tap in enumerate(taps(wide, window, inner=2)))
    y = jnp.asarray(y).reshape(x.shape[0], *window.out, w.shape[0])
    return jnp.moveaxis(y, -1, 1)


def input_gradient_depthwise(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve_depthwise` in its data."""
    wide = widen(w)
    x = jax.ShapeDtypeStruct((g.shape[0], groups, *size), wide.dtype)
    (dx,) = jax.linear_transpose(lambda v: convolve_depthwise(v, wide, window, groups), x)(widen(g))
    return dx


def weight_gradient_by_gemm(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """Compute one product for each group: cotangents times all windows side by side."""
    channels, features = shape[1], shape[0] // groups
    columns = stack_taps(pad(x.swapaxes(0, 1), window, 0), window)
    columns = columns.reshape(math.prod(window.kernel), groups, channels, -1)
    left = g.astype(x.dtype).swapaxes(0, 1).reshape(groups, features, -1)
    dw = product("gop,kgcp->gokc", left, columns)
    dw = dw.reshape(shape[0], *reversed(window.kernel), channels)
    return dw.transpose(0, dw.ndim - 1, *range(dw.ndim - 2, 0, -1))


def _matrix(w: jax.Array) -> jax.Array:
    """Weights ``(O, C, *kernel)`` as ``(O, taps * C)``, taps as :func:`stack_taps` orders them."""
    n = w.ndim - 2
    return w.transpose(0, *range(n + 1, 1, -1), 1).reshape(w.shape[0], -1)


def convolve_by_gemm(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """The convolution of one group as one product of the weights with all windows side by side."""
    del groups
    columns = stack_taps(pad(x.swapaxes(0, 1), window, 0), window)
    y = product("ok,kp->op", _matrix(w), columns.reshape(-1, x.shape[0] * math.prod(window.out)))
    return y.reshape(w.shape[0], x.shape[0], *window.out).swapaxes(0, 1)


def input_gradient_by_gemm(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """Input gradient: one product for what every tap gives, then each added where it belongs."""
    del groups
    g = g.astype(w.dtype)
    n = g.shape[0]
    if n >= _ROW and max(size) <= _MANY_ROWS:
        g = lax.optimization_barrier(jnp.moveaxis(g, 0, -1))
        parts = product("ok,op->kp", _matrix(w), g.reshape(g.shape[0], -1))
        parts = parts.reshape(*reversed(window.kernel), w.shape[1], *window.out, n)
        return jnp.moveaxis(overlap_add_rows(parts, window, size), -1, 0)
    parts = product("ok,op->kp", _matrix(w), g.swapaxes(0, 1).reshape(g.shape[1], -1))
    parts = parts.reshape(*reversed(window.kernel), w.shape[1], n, *window.out)
    return overlap_add(parts, window, size).swapaxes(0, 1)


def input_gradient_of_tiles(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """What each window gives to its block of the data, of spatial sizes ``size``, as one product.

    For one group whose windows lie side by side, so that one window reads each element of the data:
    that is how pictures are cut into patches, and, the other way round, how a transposed
    convolution makes a block of places of each. Forward and weight gradient stay with the others:
    their data would have to be laid out again first.
    """
    del groups
    n, batch, (features, channels) = window.ndim, g.shape[0], w.shape[:2]
    rows = jnp.moveaxis(g.astype(w.dtype), 1, -1).reshape(batch * math.prod(window.out), features)
    matrix = jnp.moveaxis(w, 1, -1).reshape(features, math.prod(window.kernel) * channels)
    parts = product("po,ok->pk", rows, matrix)
    parts = parts.reshape(batch, *window.out, *window.kernel, channels)
    pairs = (axis for a in range(n) for axis in (1 + a, 1 + n + a))
    dx = parts.transpose(0, *pairs, 2 * n + 1).reshape(batch, *size, channels)
    return jnp.moveaxis(dx, -1, 1)


_IMAGES = 16
"""Images whose products are added in one pass (8 to 16 measured alike)."""

_Span = tuple[int, int, int]
"""First, last and step of a slice."""


def weight_gradient_by_tap_sums(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """Kernel gradient of a convolution of single channels.

    A tap's gradient is the sum, over all places that it was used at, of what it saw there times the
    cotangent. With channels last that is elementwise work on whole slices, which XLA:CPU runs with
    vector instructions on all cores; as a product of matrices it has one row.

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
        return [_tap(x, g, spans) for spans in _places(window, x.shape[1:-2])]

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
