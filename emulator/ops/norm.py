"""Lowerings of normalisations: layer, group, instance, batch, RMS and weight norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from emulator.ops.precision import widen
from emulator.ops.registry import op
from pef_schema.errors import SambaError


def _mean(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Mean that keeps its axes; inner axes first, since XLA is slow over a short leading one."""
    count = math.prod(x.shape[a] for a in axes)
    if 0 in axes and len(axes) > 1:
        x = jnp.sum(x, axis=tuple(a for a in axes if a != 0), keepdims=True)
        axes = (0,)
    return jnp.sum(x, axis=axes, keepdims=True) / count


Moments = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def standardize(x: jax.Array, axes: tuple[int, ...], eps: float) -> Moments:
    """Shift and scale to mean 0 and variance 1 along ``axes``.

    The moments carry no gradient of their own, as in torch.

    Args:
        x: Data.
        axes: Axes that share a mean, not negative.
        eps: Added to the (biased) variance.

    Returns:
        Standardized values, mean and reciprocal standard deviation (axes kept with size 1),
        all in the compute dtype.
    """
    wide = widen(x)
    mean = _mean(wide, axes)
    centered = wide - mean
    rstd = lax.rsqrt(_mean(centered * centered, axes) + eps)
    return centered * rstd, mean, rstd


def _standardize_forward(
    x: jax.Array, axes: tuple[int, ...], eps: float
) -> tuple[Moments, tuple[jax.Array, jax.Array, jax.Array]]:
    y, mean, rstd = standardize(x, axes, eps)
    return (y, mean, rstd), (x, mean, rstd)


def _standardize_backward(
    axes: tuple[int, ...], eps: float, saved: tuple[jax.Array, jax.Array, jax.Array], grads: Moments
) -> tuple[jax.Array]:
    x, mean, rstd = saved
    mean, rstd = (widen(m.astype(x.dtype)) for m in (mean, rstd))  # torch saves them rounded
    y, g = (widen(x) - mean) * rstd, grads[0]
    return ((rstd * (g - _mean(g, axes) - y * _mean(g * y, axes))).astype(x.dtype),)


standardize.defvjp(_standardize_forward, _standardize_backward)


def _affine(y: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _channels(v: jax.Array | None, ndim: int) -> jax.Array | None:
    """A per-channel vector shaped to broadcast along axis 1."""
    return None if v is None else v.reshape(-1, *(1,) * (ndim - 2))


@op("aten.native_layer_norm.default", reads=(0, 2))
def native_layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
) -> Moments:
    """Layer norm over the last axes; also mean and reciprocal standard deviation."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    y, mean, rstd = standardize(x, axes, eps)
    weight = None if weight is None else widen(weight)
    bias = None if bias is None else widen(bias)
    y = _affine(y, weight, bias).astype(x.dtype)
    return y, mean.astype(x.dtype), rstd.astype(x.dtype)


@op("aten.layer_norm.default", reads=(0, 2))
def layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> jax.Array:
    """Layer norm over the last ``len(normalized_shape)`` axes."""
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


class EvalBatchNorm(SambaError):
    """The training form of batch norm was used with ``training=False``."""

    def __init__(self) -> None:
        super().__init__(
            "aten._native_batch_norm_legit_functional: found training=False, wanted True; "
            "call torch.nn.functional.batch_norm, which exports its own op for evaluation"
        )


def _batch_axes(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _running(old: jax.Array, new: jax.Array, momentum: float) -> jax.Array:
    return lax.stop_gradient(momentum * new + (1 - momentum) * old)


@op("aten._native_batch_norm_legit_functional.default", reads=(0, 1))
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
    """Batch norm of ``(N, C, ...)`` in training, with its statistics as values.

    Returns:
        Result, saved mean, saved reciprocal standard deviation, and the new running mean
        and variance. The running variance is the unbiased one.
    """
    if not training:
        raise EvalBatchNorm()
    axes = _batch_axes(x)
    count = math.prod(x.shape[a] for a in axes)
    y, mean, rstd = standardize(x, axes, eps)
    y = _affine(y, _channels(weight, x.ndim), _channels(bias, x.ndim))
    centered = lax.stop_gradient(widen(x) - mean)
    variance = _mean(centered * centered, axes) * (count / (count - 1) if count > 1 else math.nan)
    return (
        y.astype(x.dtype),
        mean.reshape(-1),
        rstd.reshape(-1),
        _running(running_mean, mean.reshape(-1), momentum).astype(running_mean.dtype),
        _running(running_var, variance.reshape(-1), momentum).astype(running_var.dtype),
    )


@op("aten._native_batch_norm_legit.no_stats", reads=(0, 1))
def batch_norm_no_stats(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Moments:
    """Batch norm without running statistics."""
    y, mean, rstd = standardize(x, _batch_axes(x), eps)
    y = _affine(y, _channels(weight, x.ndim), _channels(bias, x.ndim))
    return y.astype(x.dtype), mean.reshape(-1), rstd.reshape(-1)


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
    """Batch norm with running statistics; they get no gradient, and nothing is saved."""
    mean = _channels(lax.stop_gradient(running_mean), x.ndim)
    rstd = lax.rsqrt(widen(lax.stop_gradient(running_var)) + eps)
    y = (widen(x) - mean) * _channels(rstd, x.ndim)
    y = _affine(y, _channels(weight, x.ndim), _channels(bias, x.ndim))
    empty = jnp.zeros((0,), rstd.dtype)
    return y.astype(x.dtype), empty, empty
