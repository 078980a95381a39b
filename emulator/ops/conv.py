"""Lowerings of convolutions over one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels import convolutions
from emulator.kernels.precision import widen
from emulator.kernels.windows import Window, expand
from emulator.op_facts.facts import ALL_INPUTS
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import sum_rows
from emulator.ops.registry import Channels, Form, op

Sizes = int | Sequence[int]


def _channels(inputs: Sequence[Form], output: Form) -> Channels | None:
    """Channels last, unless the convolution runs as one product of few taps."""
    x, w = inputs[0].shape, inputs[1].shape
    n = len(w) - 2
    if n < 1 or not len(x) == len(output.shape) == n + 2:
        return None
    out = output.shape[2:]
    window = Window(
        kernel=w[2:],
        stride=tuple(max(size // max(o, 1), 1) for size, o in zip(x[2:], out, strict=True)),
        dilation=(1,) * n,
        low=(0,) * n,
        high=(0,) * n,
        out=out,
    )
    groups = max(x[1] // max(w[1], 1), 1)  # 1 where a transposed one makes more features of them
    last = convolutions.runs_channels_last(x, w, inputs[0].dtype, window, groups)
    return Channels.LAST if last else None


Saved = tuple[jax.Array, jax.Array]


def _conv_backward(
    window: Window, groups: int, saved: Saved, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    dx = convolutions.input_gradient(g, w, window, groups, x.shape[2:])
    dw = convolutions.weight_gradient(x, g, window, groups, w.shape)
    return dx.astype(x.dtype), dw.astype(w.dtype)


@with_gradient(_conv_backward, static=(2, 3))
def _conv(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    return convolutions.convolve(x, w, window, groups)


def _transposed_backward(
    window: Window, groups: int, size: tuple[int, ...], saved: Saved, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    del size
    x, w = saved
    g = g.astype(x.dtype)
    dx = convolutions.convolve(g, w, window, groups)
    dw = convolutions.weight_gradient(g, x, window, groups, w.shape)
    return dx.astype(x.dtype), dw.astype(w.dtype)


@with_gradient(_transposed_backward, static=(2, 3, 4))
def _transposed_conv(
    x: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    return convolutions.input_gradient(x, w, window, groups, size)


def _transposed(
    x: jax.Array,
    w: jax.Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> jax.Array:
    """The input gradient of the convolution that goes the other way."""
    # Output padding takes from the padding at the end; then come elements that a stride skips. What
    # lies beyond no window reaches: zeros.
    cut = tuple(map(min, output_padding, padding))
    read = tuple(t + min(o - t, s - 1) for t, o, s in zip(cut, output_padding, stride, strict=True))
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + r + 1
        for n, s, p, d, k, r in zip(
            x.shape[2:], stride, padding, dilation, w.shape[2:], read, strict=True
        )
    )
    window = Window(
        kernel=w.shape[2:],
        stride=stride,
        dilation=dilation,
        low=padding,
        high=tuple(p - t for p, t in zip(padding, cut, strict=True)),
        out=x.shape[2:],
    )
    y = _transposed_conv(x, w, window, groups, size)
    rest = [(0, o - r, 0) for o, r in zip(output_padding, read, strict=True)]
    return (
        y
        if read == output_padding
        else lax.pad(y, jnp.zeros((), y.dtype), [(0, 0, 0), (0, 0, 0), *rest])
    )


def _bias_backward(bias: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = jnp.moveaxis(g, 1, -1).reshape(g.size // max(g.shape[1], 1), g.shape[1])
    return g, sum_rows(rows).astype(bias.dtype)


@with_gradient(_bias_backward, saves=lambda _y, _x, bias: bias)
def _add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Add ``(C,)`` to ``(N, C, ...)`` channels last; as its gradient is summed."""
    return jnp.moveaxis(jnp.moveaxis(y, 1, -1) + widen(bias), -1, 1)


_convolution = partial(op, reads=(0, 1), linear_in=(0, 1), flops=("bias", 2), rounds=ALL_INPUTS)


@_convolution(
    "aten.convolution.default", channels=_channels, products="convolution", scratch="convolution"
)
def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> jax.Array:
    """The general form to which core ATen reduces every convolution.

    A padding that is a text is ``valid`` or ``same``.
    """
    n = weight.ndim - 2
    stride, dilation = expand(stride, n), expand(dilation, n)
    batched = x if x.ndim == n + 2 else x[None]
    kernel = weight.shape[2:]
    if transposed:
        if isinstance(padding, str):  # torch's schema has no such overload
            raise TypeError("a transposed convolution takes numbers for padding")
        y = _transposed(
            batched, weight, stride, expand(padding, n), expand(output_padding, n), dilation, groups
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
        y = _conv(batched, weight, window, groups)
    if not batched.shape[1]:  # of no channels torch makes no features
        y = jnp.zeros((y.shape[0], 0, *y.shape[2:]), y.dtype)
    elif bias is not None:
        y = _add_bias(y, bias)
    y = y.astype(x.dtype)
    return y if x.ndim == n + 2 else y[0]


@_convolution(
    *(f"aten.conv{n}d.{kind}" for n in (1, 2, 3) for kind in ("default", "padding")),
    channels=_channels,
    products="conv",
    scratch="convolution",
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
    sides = "valid" if padding is None else padding
    return convolution(x, weight, bias, stride, sides, dilation, False, 0, groups)


@_convolution(
    *("aten.conv_transpose1d.default", "aten.conv_transpose2d.input"),
    "aten.conv_transpose3d.input",
    channels=Channels.LAST,
    products="conv_transpose",
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
    return convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)
