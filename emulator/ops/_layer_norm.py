"""Rows normalized and scaled: layer norm with a gradient of few passes over the data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import large_part, sum_within

Vector = jax.Array | None
Saved = tuple[jax.Array, Vector, Vector, jax.Array, jax.Array]
Normalized = tuple[jax.Array, jax.Array, jax.Array]


def _moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each row."""
    mean = sum_within(x, 1) / x.shape[1]
    centered = x - mean
    return mean, sum_within(centered * centered, 1) / x.shape[1]


def _row_means(
    g: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each row the mean of the cotangent, alone and times the standardized data."""
    along = sum_within(g * ((x - mean) * rstd), 1)
    return sum_within(g, 1) / x.shape[1], along / x.shape[1]


def _scaled_row_means(
    g: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _row_means(g * weight, x, mean, rstd)


def _column_sums(
    g: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each column the sum of the cotangent, alone and times the standardized data."""
    return sum_within(g, 0)[0], sum_within(g * ((x - mean) * rstd), 0)[0]


def _forward(
    x: jax.Array, weight: Vector, bias: Vector, eps: float, stats: jnp.dtype
) -> tuple[Normalized, Saved]:
    wide = widen(x)
    mean, variance = large_part(_moments, wide)
    rstd = lax.rsqrt(variance + eps)
    y = (wide - mean) * rstd
    y = y if weight is None else y * widen(weight)
    y = y if bias is None else y + widen(bias)
    return (y, mean, rstd), (x, weight, bias, mean, rstd)


def _backward(
    eps: float, stats: jnp.dtype, saved: Saved, grads: Normalized
) -> tuple[jax.Array, Vector, Vector]:
    x, weight, bias, mean, rstd = saved
    wide = widen(x)
    mean, rstd = widen(mean.astype(stats)), widen(rstd.astype(stats))
    g = grads[0]
    dweight = dbias = None
    if weight is not None or bias is not None:
        total, along = large_part(_column_sums, g, wide, mean, rstd)
        dweight = None if weight is None else along.astype(weight.dtype)
        dbias = None if bias is None else total.astype(bias.dtype)
    if weight is None:
        direct, along = large_part(_row_means, g, wide, mean, rstd)
    else:
        direct, along = large_part(_scaled_row_means, g, wide, mean, rstd, widen(weight))
        g = g * widen(weight)
    dx = rstd * (g - direct - (wide - mean) * rstd * along)
    return dx.astype(x.dtype), dweight, dbias


@with_gradient(_forward, _backward, static=(3, 4))
def normalize_rows(
    x: jax.Array, weight: Vector, bias: Vector, eps: float, stats: jnp.dtype
) -> Normalized:
    """Shift and scale the rows of ``(R, C)`` to mean 0 and variance 1, then affinely.

    Args:
        x: Data.
        weight, bias: Per column.
        eps: Added to the (biased) variance.
        stats: Dtype in which torch keeps the moments for its backward pass.

    Returns:
        The result, mean and reciprocal standard deviation ``(R, 1)`` of the rows, in the
        compute dtype. Only the result carries a gradient.
    """
    return _forward(x, weight, bias, eps, stats)[0]
