"""Lowerings of batch norm in the forms that export leaves.

Running statistics are values: they come in as arguments and their new contents go out as
results, which the compiler writes back to their buffers.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen
from emulator.kernels.unfused import compile_apart
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import column_sums_within, large_part, sum_within
from emulator.ops.norm import (
    Moments,
    affine,
    stats_dtype,
)
from emulator.ops.registry import Channels, op
from pef_schema.errors import SambaError

_batch_norm = partial(op, channels=Channels.LAST, flops=("input", 0, 8), fusing=Fusing.CHEAP)

Saved = tuple[jax.Array, jax.Array | None, jax.Array | None, jax.Array, jax.Array]
Normalized = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _normalize_backward(
    eps: float, stats: jnp.dtype, saved: Saved, grads: Normalized
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    x, weight, bias, mean, rstd = saved
    mean, rstd = widen(mean.astype(stats)), widen(rstd.astype(stats))
    g, dmean, drstd, _ = grads
    total, along = compile_apart(_sums, g, x, mean)
    along = along * rstd
    dweight = None if weight is None else along.astype(weight.dtype)
    dbias = None if bias is None else total.astype(bias.dtype)
    count = x.shape[0]
    scale = rstd if weight is None else rstd * widen(weight)
    direct = (total / count, rstd * along / count)
    moments = (dmean / count, rstd * (rstd * (rstd * drstd)) / count)
    dx = compile_apart(_input_gradient, g, x, mean, scale, direct, moments)
    return dx, dweight, dbias


def _total(x: jax.Array) -> jax.Array:
    return sum_within(widen(x), 0)[0]


def _squares(x: jax.Array, mean: jax.Array) -> jax.Array:
    def square(rows: jax.Array) -> jax.Array:
        centered = widen(rows) - mean
        return centered * centered

    return column_sums_within(square, x)


def _sums(g: jax.Array, x: jax.Array, mean: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of the cotangent, alone and times the centered data."""

    def along(g: jax.Array, x: jax.Array) -> jax.Array:
        return g * (widen(x) - mean)

    return sum_within(g, 0)[0], column_sums_within(along, g, x)


def _input_gradient(
    g: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    scale: jax.Array,
    direct: tuple[jax.Array, jax.Array],
    moments: tuple[jax.Array, jax.Array],
) -> jax.Array:
    # Subtracted before it is scaled: what is left of nearly equal terms stays exact.
    centered = widen(x) - mean
    dx = scale * (g - direct[0] - centered * direct[1])
    return (dx + (moments[0] - centered * moments[1])).astype(x.dtype)


@with_gradient(
    _normalize_backward,
    saves=lambda result, x, weight, bias, *_: (x, weight, bias, *result[1:3]),
    static=(3, 4),
)
def _normalize(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
    stats: jnp.dtype,
) -> Normalized:
    """Shift and scale the columns of ``(R, C)`` to mean 0 and variance 1, then affinely.

    The backward pass takes two sums, from which the gradients of weight and bias follow too
    (Ioffe and Szegedy, "Batch Normalization", 2015, section 3).

    Args:
        x: Data.
        weight, bias: Per column.
        eps: Added to the (biased) variance.
        stats: Dtype in which torch keeps the moments for its backward pass.

    Returns:
        The result, mean, reciprocal standard deviation and variance of the columns, in the
        compute dtype. The variance carries no gradient.
    """
    mean = large_part(_total, x) / x.shape[0]
    variance = large_part(_squares, x, mean) / x.shape[0]
    rstd = lax.rsqrt(variance + eps)
    y = affine((widen(x) - mean) * rstd, weight, bias)
    return y, mean, rstd, variance


def _rows(x: jax.Array) -> jax.Array:
    """``(N, C, ...)`` as ``(R, C)``, the order in which convolutions run."""
    return jnp.moveaxis(x, 1, -1).reshape(x.shape[0] * math.prod(x.shape[2:]), x.shape[1])


def _as(y: jax.Array, x: jax.Array) -> jax.Array:
    """``(R, C)`` back in the shape and dtype of ``x``."""
    shape = (x.shape[0], *x.shape[2:], x.shape[1])
    return jnp.moveaxis(y.reshape(shape), -1, 1).astype(x.dtype)


class NoStatistics(SambaError):
    """Batch norm is asked to use running statistics that it was not given."""

    def __init__(self) -> None:
        super().__init__(
            "aten._native_batch_norm_legit.no_stats: found training=False and no running "
            "statistics; torch reads memory that is not there. Use training=True, or give running "
            "statistics to aten._native_batch_norm_legit_no_training"
        )


@_batch_norm("aten._native_batch_norm_legit.no_stats", reads=(0, 1))
def batch_norm_no_stats(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Moments:
    """Batch norm of ``(N, C, ...)`` by its own statistics; also mean and 1 / deviation.

    Raises:
        NoStatistics: Unless training.
    """
    if not training:
        raise NoStatistics
    stats = stats_dtype(x, weight, bias)
    y, mean, rstd, _ = _normalize(_rows(x), weight, bias, eps, stats)
    return _as(y, x), mean.astype(stats), rstd.astype(stats)


def _running(old: jax.Array, new: jax.Array, momentum: float) -> jax.Array:
    mixed = momentum * new + (1 - momentum) * widen(old)
    return lax.stop_gradient(mixed).astype(old.dtype)


@_batch_norm("aten._native_batch_norm_legit_functional.default", reads=(0, 1, 3, 4))
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
    rows = _rows(x)
    count = rows.shape[0]
    stats = stats_dtype(x, weight, running_mean)
    y, mean, rstd, variance = _normalize(rows, weight, bias, eps, stats)
    variance = variance * (count / (count - 1) if count > 1 else math.nan)
    return (
        _as(y, x),
        mean.astype(stats),
        rstd.astype(stats),
        _running(running_mean, mean, momentum),
        _running(running_var, variance, momentum),
    )


@_batch_norm("aten._native_batch_norm_legit_no_training.default", reads=(0, 1, 3, 4))
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
    mean, rstd = lax.stop_gradient((widen(running_mean), lax.rsqrt(widen(running_var) + eps)))
    y = affine((widen(_rows(x)) - mean) * rstd, weight, bias)
    empty = jnp.zeros((0,), stats_dtype(x, weight, running_mean))
    return _as(y, x), empty, empty
