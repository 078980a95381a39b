"""Convolutions and their gradients by the native kernels, which compute with channels last."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from emulator.kernels.precision import widen
from emulator.kernels.problems import Convolution, Part
from emulator.kernels.target import native_kernels
from emulator.kernels.windows import Window
from emulator.native.convolution import (
    ConvolutionCall,
    call_convolution,
    has_convolution,
)
from emulator.native.library import shares_of

_LARGE_DATA = 4
"""A gradient of kernels is native if the data have at least so many times the elements of the
kernels: each thread computes a whole gradient, and all are added up. XLA divides it by features."""

_MOST_AXES = 3


def has_kernel(problem: Convolution) -> bool:
    """Whether the native kernels compute a convolution, or a gradient of one.

    Args:
        problem: The convolution.

    Returns:
        False where they are missing, for types that are not computed in float32, for more than
        three axes, and for padding that oneDNN does not have: cropped data, and windows that see
        nothing else.
    """
    if native_kernels() is None or problem.dtype not in ("float32", "bfloat16", "float16"):
        return False
    if problem.empty or not 1 <= len(problem.size) <= _MOST_AXES:
        return False
    window = problem.window
    reaches = [d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True)]
    pads = zip(window.padding(problem.size), reaches, strict=True)
    if not all(0 <= low <= reach and high <= reach for (low, high), reach in pads):
        return False
    if problem.part is Part.WEIGHT_GRADIENT and _data(problem) < _LARGE_DATA * _kernels(problem):
        return False
    return has_convolution(_call(problem))


def _data(p: Convolution) -> int:
    """Elements of a convolution's data and of its result."""
    places = p.channels * math.prod(p.size) + p.features * math.prod(p.window.out)
    return p.batch * places


def _kernels(p: Convolution) -> int:
    return p.features * p.channels // p.groups * p.taps


def _call(p: Convolution) -> ConvolutionCall:
    sides = p.window.padding(p.size)
    return ConvolutionCall(
        part=p.part,
        groups=p.groups,
        threads=shares_of(p.operations),
        x=(p.batch, *p.size, p.channels),
        w=(p.features, p.channels // p.groups, *p.window.kernel),
        y=(p.batch, *p.window.out, p.features),
        stride=p.window.stride,
        dilation=p.window.dilation,
        low=tuple(low for low, _ in sides),
        high=tuple(high for _, high in sides),
    )


def _last(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(widen(x), 1, -1)


def convolve(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolution of ``(N, C, ...)`` with ``(O, C / groups, ...)``, in float32."""
    call = _call(Convolution.of(Part.FORWARD, x.dtype, x.shape, w.shape, window, groups))
    return jnp.moveaxis(call_convolution(call, _last(x), widen(w)), -1, 1)


def input_gradient(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its data, of spatial sizes ``size``."""
    data = (g.shape[0], w.shape[1] * groups, *size)
    call = _call(Convolution.of(Part.INPUT_GRADIENT, w.dtype, data, w.shape, window, groups))
    return jnp.moveaxis(call_convolution(call, _last(g), widen(w)), -1, 1)


def weight_gradient(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its kernels, of shape ``shape``."""
    call = _call(Convolution.of(Part.WEIGHT_GRADIENT, x.dtype, x.shape, shape, window, groups))
    return call_convolution(call, _last(x), _last(g))
