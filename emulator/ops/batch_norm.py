"""Lowerings of batch norm in the forms that export leaves.

Running statistics are values: they come in as arguments and their new contents go out as
results, which the compiler writes back to their buffers.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from emulator.ops._precision import widen
from emulator.ops.norm import (
    Moments,
    by_running_stats,
    channel_affine,
    mean_over,
    standardize,
    stats_dtype,
)
from emulator.ops.registry import op


def _batch_axes(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


@op("aten._native_batch_norm_legit.no_stats", reads=(0, 1))
def batch_norm_no_stats(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Moments:
    """Batch norm of ``(N, C, ...)`` by its own statistics; also mean and 1 / deviation."""
    stats = stats_dtype(x, weight, bias)
    y, mean, rstd = standardize(x, _batch_axes(x), eps, stats)
    y = channel_affine(y, weight, bias)
    return y.astype(x.dtype), mean.reshape(-1).astype(stats), rstd.reshape(-1).astype(stats)


def _running(old: jax.Array, new: jax.Array, momentum: float) -> jax.Array:
    mixed = momentum * new.reshape(-1) + (1 - momentum) * widen(old)
    return lax.stop_gradient(mixed).astype(old.dtype)


@op("aten._native_batch_norm_legit_functional.default", reads=(0, 1, 3, 4))
def batch_norm_functional(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Batch norm of ``(N, C, ...)``, in training or by running statistics.

    Returns:
        Result, mean, reciprocal standard deviation (both empty unless training), and the new
        running mean and variance. The running variance takes the unbiased one.
    """
    if not training:
        y, *empty = batch_norm_eval(x, weight, bias, running_mean, running_var, momentum, eps)
        return y, empty[0], empty[1], running_mean, running_var
    axes = _batch_axes(x)
    count = math.prod(x.shape[a] for a in axes)
    stats = stats_dtype(x, weight, running_mean)
    y, mean, rstd = standardize(x, axes, eps, stats)
    y = channel_affine(y, weight, bias)
    centered = lax.stop_gradient(widen(x) - mean)
    unbiased = count / (count - 1) if count > 1 else math.nan
    variance = mean_over(centered * centered, axes) * unbiased
    return (
        y.astype(x.dtype),
        mean.reshape(-1).astype(stats),
        rstd.reshape(-1).astype(stats),
        _running(running_mean, mean, momentum),
        _running(running_var, variance, momentum),
    )


@op("aten._native_batch_norm_legit_no_training.default", reads=(0, 1, 3, 4))
def batch_norm_eval(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> Moments:
    """Batch norm of ``(N, C, ...)`` by running statistics; nothing is saved."""
    y = by_running_stats(x, weight, bias, running_mean, running_var, eps)
    empty = jnp.zeros((0,), stats_dtype(x, weight, running_mean))
    return y, empty, empty
