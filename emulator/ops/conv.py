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
from emulator.ops._windows import Window, expand, pad, taps
from emulator.ops.registry import op

_STACK_LIMIT = 32 << 20
"""Bytes of stacked taps up to which the weight gradient is one GEMM.

Beyond it (many channels, large images) the copy costs more than XLA's own convolution,
which packs the same matrix piece by piece.
"""

_SPATIAL = ("W", "HW", "DHW")

Sizes = int | Sequence[int]


def _convolve(
    x: jax.Array,
    w: jax.Array,
    window: Window,
    groups: int,
    inflate: tuple[int, ...] | None = None,
) -> jax.Array:
    axes = _SPATIAL[window.ndim - 1]
    # XLA:CPU has no fast kernel for half types: the product of their float32 copies is exact.
    return lax.conv_general_dilated(
        widen(x),
        widen(w),
        window.stride,
        list(zip(window.low, window.high, strict=True)),
        lhs_dilation=inflate,
        rhs_dilation=window.dilation,
        dimension_numbers=(f"NC{axes}", f"OI{axes}", f"NC{axes}"),
        feature_group_count=groups,
    )


def _weight_gradient(
    x: jax.Array, g: jax.Array, shape: tuple[int, ...], window: Window, groups: int
) -> jax.Array:
    """One GEMM over all taps, ``(K * C, N * out) x (N * out, O)``, for each group.

    The channels go in front of the batch before the taps are cut, while the data is small:
    the product is then a plain ``A @ B``, the layout that XLA:CPU runs fastest.
    """
    n, outs = x.shape[0], math.prod(window.out)
    channels, features = shape[1], shape[0] // groups
    # Once, whatever x is made of: XLA would make it again for every tap.
    padded = lax.optimization_barrier(pad(x, window, 0))
    if groups == 1:
        cut = [t.reshape(channels, n * outs) for t in taps(padded.swapaxes(0, 1), window)]
        right = jnp.moveaxis(g, 1, -1).reshape(n * outs, features)
        dw = contract("kp,po->ko", jnp.concatenate(cut), right)
        return dw.reshape(len(cut), channels, features).transpose(2, 1, 0).reshape(shape)
    by_group = padded.swapaxes(0, 1).reshape(groups, channels, n, *padded.shape[2:])
    stacked = jnp.stack([t.reshape(groups, channels, -1) for t in taps(by_group, window)], axis=1)
    left = g.swapaxes(0, 1).reshape(groups, features, n * outs)
    return contract("gop,gkcp->gock", left, stacked).reshape(shape)


def _conv_forward(
    x: jax.Array, w: jax.Array, window: Window, groups: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(x, w, window, groups), (x, w)


def _conv_backward(
    window: Window, groups: int, saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    wide_x, wide_w = widen(x), widen(w)
    (dx,) = jax.linear_transpose(lambda v: _convolve(v, wide_w, window, groups), wide_x)(g)
    k, outs = math.prod(window.kernel), math.prod(window.out)
    if k * x.shape[0] * x.shape[1] * outs * x.dtype.itemsize <= _STACK_LIMIT:
        dw = _weight_gradient(x, g.astype(x.dtype), w.shape, window, groups)
    else:
        (dw,) = jax.linear_transpose(lambda v: _convolve(wide_x, v, window, groups), wide_w)(g)
    return dx.astype(x.dtype), dw.astype(w.dtype)


@with_gradient(_conv_forward, _conv_backward, static=(2, 3))
def _conv(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    return _convolve(x, w, window, groups)


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
        y = y + widen(bias).reshape(-1, *(1,) * n)
    y = y.astype(x.dtype)
    return y if x.ndim == n + 2 else y[0]


@op(
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    reads=(0, 1),
    linear_in=(0, 1),
)
@op(
    "aten.conv1d.padding",
    "aten.conv2d.padding",
    "aten.conv3d.padding",
    reads=(0, 1),
    linear_in=(0, 1),
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


@op("aten.convolution.default", reads=(0, 1), linear_in=(0, 1))
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
