"""Lowerings: Fourier transforms; torch's functions are made of these three."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import FftType

from emulator.mesh.whole import whole
from emulator.ops.registry import op

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
