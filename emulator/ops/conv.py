"""Lowerings of convolutions over one, two or three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from emulator.ops._gemm import contract
from emulator.ops._gradient import with_gradient
from emulator.ops._precision import widen
from emulator.ops._reduction import sum_rows
from emulator.ops._windows import (
    Window,
    expand,
    overlap_add,
    overlap_add_rows,
    pad,
    stack_taps,
    taps,
)
from emulator.ops.registry import Channels, op

_FEW_CHANNELS = 16
"""Channels up to which the input gradient is one GEMM and an overlap-add."""
_FEW_TAPS = 32
"""Taps times channels up to which the convolution itself is one GEMM."""
_ROW, _MANY_ROWS = 16, 64
"""Batch size from which, and image size up to which, that overlap-add goes row by row."""
_MANY_TAPS = 64
"""Taps up to which a convolution of single channels is a sum of them; the code grows with it."""
_STACK_LIMIT = 64 << 20
"""Bytes of stacked taps up to which either is done; XLA packs larger ones piece by piece."""

Sizes = int | Sequence[int]


def _convolve(
    x: jax.Array,
    w: jax.Array,
    window: Window,
    groups: int,
    inflate: tuple[int, ...] | None = None,
) -> jax.Array:
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
        lhs_dilation=inflate,
        rhs_dilation=window.dilation,
        dimension_numbers=last,
        feature_group_count=groups,
    )
    return jnp.moveaxis(y, -1, 1)


def _convolve_depthwise(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """A convolution of single channels, as sums of scaled taps.

    XLA:CPU runs grouped convolutions element by element: this is 50 times as fast.
    """
    groups, features = x.shape[1], w.shape[0] // x.shape[1]
    wide = pad(jnp.moveaxis(widen(x), 1, -1), window, 0, inner=1)[..., None]
    scales = widen(w).reshape(groups, features, -1)
    y = sum(tap * scales[:, :, t] for t, tap in enumerate(taps(wide, window, inner=2)))
    y = jnp.asarray(y).reshape(x.shape[0], *window.out, w.shape[0])
    return jnp.moveaxis(y, -1, 1)


def _weight_gradient_by_gemm(
    x: jax.Array, g: jax.Array, shape: tuple[int, ...], window: Window, groups: int
) -> jax.Array:
    """One product for each group: cotangents times all windows side by side."""
    channels, features = shape[1], shape[0] // groups
    columns = stack_taps(pad(x.swapaxes(0, 1), window, 0), window)
    columns = columns.reshape(math.prod(window.kernel), groups, channels, -1)
    left = g.swapaxes(0, 1).reshape(groups, features, -1)
    dw = contract("gop,kgcp->gokc", left, columns)
    dw = dw.reshape(shape[0], *reversed(window.kernel), channels)
    return dw.transpose(0, dw.ndim - 1, *range(dw.ndim - 2, 0, -1))


def _stacked_bytes(x: jax.Array, window: Window) -> int:
    return math.prod((*window.kernel, *x.shape[:2], *window.out)) * x.dtype.itemsize


def _matrix(w: jax.Array) -> jax.Array:
    """Weights ``(O, C, *kernel)`` as ``(O, taps * C)``, taps as :func:`stack_taps` orders them."""
    n = w.ndim - 2
    return w.transpose(0, *range(n + 1, 1, -1), 1).reshape(w.shape[0], -1)


def _convolve_by_gemm(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """The convolution as one product of the weights with all windows side by side."""
    columns = stack_taps(pad(x.swapaxes(0, 1), window, 0), window)
    y = contract("ok,kp->op", _matrix(w), columns.reshape(-1, x.shape[0] * math.prod(window.out)))
    return y.reshape(w.shape[0], x.shape[0], *window.out).swapaxes(0, 1)


def _input_gradient_by_gemm(
    g: jax.Array, w: jax.Array, window: Window, size: tuple[int, ...]
) -> jax.Array:
    """Input gradient: one product for what every tap gives, then each added where it belongs."""
    n = g.shape[0]
    if n >= _ROW and max(size) <= _MANY_ROWS:
        g = lax.optimization_barrier(jnp.moveaxis(g, 0, -1))
        parts = contract("ok,op->kp", _matrix(w), g.reshape(g.shape[0], -1))
        parts = parts.reshape(*reversed(window.kernel), w.shape[1], *window.out, n)
        return jnp.moveaxis(overlap_add_rows(parts, window, size), -1, 0)
    parts = contract("ok,op->kp", _matrix(w), g.swapaxes(0, 1).reshape(g.shape[1], -1))
    parts = parts.reshape(*reversed(window.kernel), w.shape[1], n, *window.out)
    return overlap_add(parts, window, size).swapaxes(0, 1)


def _few(weight: tuple[int, ...]) -> bool:
    return math.prod(weight[1:]) <= _FEW_TAPS


def _channels(shapes: Sequence[tuple[int, ...]]) -> Channels | None:
    """Channels last, but for those that run as one product of few taps."""
    x, weight = shapes[:2]
    groups = x[1 - len(weight)] // weight[1]
    return None if groups == 1 and _few(weight) else Channels.LAST


def _forward(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    if groups == 1 and _few(w.shape) and _stacked_bytes(x, window) <= _STACK_LIMIT:
        return _convolve_by_gemm(x, w, window)
    return _linear(x, w, window, groups)


def _linear(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """The convolution in a form that can be transposed in ``x``."""
    if 1 < groups == x.shape[1] and math.prod(window.kernel) <= _MANY_TAPS:
        return _convolve_depthwise(x, w, window)
    return _convolve(x, w, window, groups)


def _conv_forward(
    x: jax.Array, w: jax.Array, window: Window, groups: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _forward(x, w, window, groups), (x, w)


def _conv_backward(
    window: Window, groups: int, saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    wide_x, wide_w = widen(x), widen(w)
    few = groups == 1 and math.prod(window.kernel) > 1 and w.shape[1] <= _FEW_CHANNELS
    if few and _stacked_bytes(x, window) <= _STACK_LIMIT:
        dx = _input_gradient_by_gemm(g.astype(x.dtype), w, window, x.shape[2:])
    else:
        (dx,) = jax.linear_transpose(lambda v: _linear(v, wide_w, window, groups), wide_x)(g)
    if groups > 1:
        dw = _weight_gradient_by_gemm(x, g.astype(x.dtype), w.shape, window, groups)
        return dx.astype(x.dtype), dw.astype(w.dtype)
    (dw,) = jax.linear_transpose(lambda v: _convolve(wide_x, v, window, groups), wide_w)(g)
    return dx.astype(x.dtype), dw.astype(w.dtype)


@with_gradient(_conv_forward, _conv_backward, static=(2, 3))
def _conv(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    return _forward(x, w, window, groups)


def _transposed(
    x: jax.Array,
    w: jax.Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> jax.Array:
    """The input gradient of a convolution, as a convolution of the inflated input."""
    n = len(stride)
    kernel = w.shape[2:]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    low = tuple(r - p for r, p in zip(reach, padding, strict=True))
    high = tuple(lo + o for lo, o in zip(low, output_padding, strict=True))
    window = Window(kernel=kernel, stride=(1,) * n, dilation=dilation, low=low, high=high, out=())
    w = jnp.flip(w, axis=tuple(range(2, 2 + n)))
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    w = w.reshape(-1, *w.shape[2:])
    return _convolve(x, w, window, groups, inflate=stride)


def _bias_forward(y: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.moveaxis(jnp.moveaxis(y, 1, -1) + widen(bias), -1, 1), bias


def _bias_backward(bias: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = jnp.moveaxis(g, 1, -1).reshape(g.size // max(g.shape[1], 1), g.shape[1])
    return g, sum_rows(rows).astype(bias.dtype)


@with_gradient(_bias_forward, _bias_backward)
def _add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Add ``(C,)`` to ``(N, C, ...)`` channels last; as its gradient is summed."""
    return _bias_forward(y, bias)[0]


def _any_conv(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
    *,
    transposed: bool = False,
    output_padding: Sizes = 0,
) -> jax.Array:
    n = w.ndim - 2
    stride, dilation = expand(stride, n), expand(dilation, n)
    batched = x if x.ndim == n + 2 else x[None]
    kernel = w.shape[2:]
    if transposed:
        if isinstance(padding, str):  # torch's schema has no such overload
            raise TypeError("a transposed convolution takes numbers for padding")
        y = _transposed(
            batched, w, stride, expand(padding, n), expand(output_padding, n), dilation, groups
        )
    else:
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if padding == "valid":
            low = high = (0,) * n
        elif isinstance(padding, str):  # "same": an odd element goes to the end, as in torch
            low = tuple(r // 2 for r in reach)
            high = tuple(r - lo for r, lo in zip(reach, low, strict=True))
        else:
            low = high = expand(padding, n)
        out = tuple(
            (size + lo + hi - r - 1) // s + 1
            for size, lo, hi, r, s in zip(batched.shape[2:], low, high, reach, stride, strict=True)
        )
        window = Window(
            kernel=kernel, stride=stride, dilation=dilation, low=low, high=high, out=out
        )
        y = _conv(batched, w, window, groups)
    if bias is not None:
        y = _add_bias(y, bias)
    y = y.astype(x.dtype)
    return y if x.ndim == n + 2 else y[0]


@op(
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    reads=(0, 1),
    linear_in=(0, 1),
    channels=_channels,
)
@op(
    "aten.conv1d.padding",
    "aten.conv2d.padding",
    "aten.conv3d.padding",
    reads=(0, 1),
    linear_in=(0, 1),
    channels=_channels,
)
def conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str | None = None,
    dilation: Sizes = 1,
    groups: int = 1,
) -> jax.Array:
    """Convolution of ``(N, C, ...)`` or ``(C, ...)`` with ``(O, C / groups, ...)``.

    No padding argument means none: 0 and ``"valid"`` are the defaults of the two overloads.
    """
    return _any_conv(
        x, weight, bias, stride, "valid" if padding is None else padding, dilation, groups
    )


@op(
    "aten.conv_transpose1d.default",
    "aten.conv_transpose2d.input",
    "aten.conv_transpose3d.input",
    reads=(0, 1),
    linear_in=(0, 1),
    channels=Channels.LAST,
)
def conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> jax.Array:
    """Transposed convolution of ``(N, C, ...)`` with ``(C, O / groups, ...)``."""
    return _any_conv(
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        groups,
        transposed=True,
        output_padding=output_padding,
    )


@op("aten.convolution.default", reads=(0, 1), linear_in=(0, 1), channels=_channels)
def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> jax.Array:
    """The general form to which core ATen reduces every convolution."""
    return _any_conv(
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        groups,
        transposed=transposed,
        output_padding=output_padding,
    )
