"""Lowerings: complex numbers and their parts.

Gradients here are jax's, as everywhere in a lowering: of a real loss of ``x + iy``,
``d/dx - i d/dy``. What turns them into torch's is :func:`emulator.lowering.section.turned`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import FftType

from emulator.kernels.target import whole
from emulator.ops import _slopes as slopes
from emulator.ops._gradient import saves_result, with_gradient
from emulator.ops._promote import broadcast_all, conjugate, elementwise, is_complex
from emulator.ops.registry import op


@op("aten.view_as_complex.default", "aten.view_as_complex_copy.default", moves=True)
def view_as_complex(x: jax.Array) -> jax.Array:
    """Complex numbers of pairs along the last dimension."""
    return lax.complex(x[..., 0], x[..., 1])


@op("aten.view_as_real.default", "aten.view_as_real_copy.default", moves=True)
def view_as_real(x: jax.Array) -> jax.Array:
    """Real and imaginary parts as a new last dimension of 2."""
    return jnp.stack([lax.real(x), lax.imag(x)], axis=-1)


@op("aten.complex.default", moves=True)
def complex_(real: jax.Array, imag: jax.Array) -> jax.Array:
    """Complex numbers of their two parts, which broadcast."""
    return lax.complex(*broadcast_all(real, imag))


def _polar_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """torch's ``polar_backward``, which takes the absolute value to be positive."""
    return lax.real(g * _direction(y)), -lax.imag(g * y)


@with_gradient(_polar_backward, saves=saves_result)
def _polar(size: jax.Array, angle: jax.Array) -> jax.Array:
    return lax.complex(size * lax.cos(angle), size * lax.sin(angle))


@op("aten.polar.default", reads=(0, 1), cheap=True, complex=True)
def polar(size: jax.Array, angle: jax.Array) -> jax.Array:
    """Complex numbers of absolute value and angle, which broadcast."""
    return _polar(*broadcast_all(size, angle))


@op("aten.real.default", moves=True)
def real(x: jax.Array) -> jax.Array:
    """The real part; a real tensor itself."""
    return lax.real(x) if is_complex(x.dtype) else x


@op("aten.imag.default", moves=True)
def imag(x: jax.Array) -> jax.Array:
    """The imaginary part."""
    return lax.imag(x)


@op(
    *("aten.conj.default", "aten._conj.default", "aten._conj_copy.default"),
    *("aten.conj_physical.default", "aten._conj_physical.default"),
    reads=(),
    cheap=True,
    complex=True,
)
def conj(x: jax.Array) -> jax.Array:
    """The conjugate; a real tensor itself.

    Torch notes on a tensor that it is to be conjugated when it is read; here it is done at once.
    """
    return conjugate(x)


@op("aten._neg_view.default", "aten._neg_view_copy.default", reads=(), cheap=True, complex=True)
def neg_view(x: jax.Array) -> jax.Array:
    """``-x``: the imaginary part of what is to be conjugated."""
    return -x


@op("aten.mH.default", "aten.matrix_H.default", "aten.adjoint.default", moves=True)
def adjoint(x: jax.Array) -> jax.Array:
    """The conjugate with its last two dimensions swapped; a number is conjugated."""
    return conj(jnp.swapaxes(x, -1, -2) if x.ndim else x)


@op("aten.sgn.default", reads=(0,), cheap=True, complex=True)
def sgn(x: jax.Array) -> jax.Array:
    """``x / |x|``, 0 at zero; of real numbers -1, 0 or 1, without a slope."""
    if not is_complex(x.dtype):
        return x if x.dtype == bool else lax.stop_gradient(elementwise(slopes.sign, x))
    return _direction(x)


def _direction(x: jax.Array) -> jax.Array:
    """``x / |x|``, 0 at zero."""
    size = jnp.abs(x)
    zero = size == 0
    return jnp.where(zero, 0, x / jnp.where(zero, 1, size))


@op("aten.angle.default", reads=(0,), cheap=True, complex=True)
def angle(x: jax.Array) -> jax.Array:
    """The argument of a complex number; of a real one 0 or pi, without a slope."""
    if is_complex(x.dtype):
        return slopes.atan2(lax.imag(x), lax.real(x))

    def argument(a: jax.Array) -> jax.Array:
        return jnp.where(a != a, a, jnp.where(a < 0, math.pi, 0.0)).astype(a.dtype)

    return lax.stop_gradient(elementwise(argument, x, to_float=True))


_MOST = 3
"""Axes that XLA transforms at once."""


def _scale(normalization: int, sizes: Sequence[int]) -> float:
    """The factor of a transform over axes of these sizes: torch's ``fft_norm_mode``."""
    count = math.prod(sizes)
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization] if count else 1.0


def _scaled(x: jax.Array, factor: float) -> jax.Array:
    return x if factor == 1 else x * jnp.asarray(factor, x.real.dtype)


def _transform(x: jax.Array, kind: FftType, sizes: Sequence[int]) -> jax.Array:
    # Of several chips each makes all of it: along a divided axis XLA fails.
    return whole(lax.fft(whole(x), kind, sizes))


def _along(x: jax.Array, dims: Sequence[int], kind: FftType) -> jax.Array:
    """An unscaled transform between complex numbers along some axes."""
    for start in range(0, len(dims), _MOST):
        part = tuple(d % x.ndim for d in dims[start : start + _MOST])
        last = tuple(range(x.ndim - len(part), x.ndim))
        sizes = tuple(x.shape[d] for d in part)
        moved = _transform(jnp.moveaxis(x, part, last), kind, sizes)
        if kind is FftType.IFFT:
            moved = _scaled(moved, math.prod(sizes))
        x = jnp.moveaxis(moved, last, part)
    return x


@op("aten._fft_c2c.default", reads=(), complex=True, flops=("fourier",))
def fft_c2c(x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    """The transform of complex numbers."""
    y = _along(x, dim, FftType.FFT if forward else FftType.IFFT)
    return _scaled(y, _scale(normalization, [x.shape[d] for d in dim]))


@op("aten._fft_r2c.default", reads=(), complex=True, flops=("fourier",))
def fft_r2c(x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    """The transform of real numbers; of the last axis half of it, since the rest are conjugates."""
    axis = dim[-1] % x.ndim
    size = x.shape[axis]
    if onesided:
        y = jnp.moveaxis(_transform(jnp.moveaxis(x, axis, -1), FftType.RFFT, (size,)), -1, axis)
    else:
        y = _along(lax.complex(x, jnp.zeros_like(x)), (axis,), FftType.FFT)
    y = _along(y, dim[:-1], FftType.FFT)
    return _scaled(y, _scale(normalization, [x.shape[d] for d in dim]))


@op("aten._fft_c2r.default", reads=(), complex=True, flops=("fourier",))
def fft_c2r(x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    """The inverse transform to real numbers from one half along the last axis."""
    axis = dim[-1] % x.ndim
    y = jnp.moveaxis(_along(x, dim[:-1], FftType.IFFT), axis, -1)
    y = _transform(y[..., : last_dim_size // 2 + 1], FftType.IRFFT, (last_dim_size,))
    y = jnp.moveaxis(_scaled(y, last_dim_size), -1, axis)
    return _scaled(y, _scale(normalization, [y.shape[d] for d in dim]))
