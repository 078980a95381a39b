"""Lowerings of layer, group, instance, RMS and weight norm, and what batch norm shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen, widened
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import broadcast_to
from emulator.ops._reduction import large_part, reduce_all, reduce_kept, sum_within
from emulator.ops.registry import op
from pef_schema.errors import SambaError

Vector = jax.Array | None
Saved = tuple[jax.Array, Vector, Vector, jax.Array, jax.Array]
Normalized = tuple[jax.Array, jax.Array, jax.Array]


def _moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each row."""
    mean = sum_within(x, 1) / x.shape[1]
    centered = x - mean
    return mean, sum_within(centered * centered, 1) / x.shape[1]


def _row_means(
    g: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array, weight: Vector
) -> tuple[jax.Array, jax.Array]:
    """Of each row the mean of the cotangent, alone and times the standardized data."""
    g = g if weight is None else g * weight
    along = sum_within(g * ((x - mean) * rstd), 1)
    return sum_within(g, 1) / x.shape[1], along / x.shape[1]


def _column_sums(
    g: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each column the sum of the cotangent, alone and times the standardized data."""
    return sum_within(g, 0)[0], sum_within(g * ((x - mean) * rstd), 0)[0]


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
    scale = None if weight is None else widen(weight)
    direct, along = large_part(_row_means, g, wide, mean, rstd, scale)
    g = g if scale is None else g * scale
    dx = rstd * (g - direct - (wide - mean) * rstd * along)
    return dx.astype(x.dtype), dweight, dbias


@with_gradient(
    _backward,
    saves=lambda result, x, weight, bias, *_: (x, weight, bias, *result[1:]),
    static=(3, 4),
)
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
    wide = widen(x)
    mean, variance = large_part(_moments, wide)
    rstd = lax.rsqrt(variance + eps)
    y = (wide - mean) * rstd
    y = y if weight is None else y * widen(weight)
    y = y if bias is None else y + widen(bias)
    return y, mean, rstd


def mean_over(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Mean that keeps its axes."""
    return reduce_kept(x, axes) / math.prod(x.shape[a] for a in axes)


Moments = tuple[jax.Array, jax.Array, jax.Array]


def _standardize_backward(
    axes: tuple[int, ...],
    eps: float,
    stats: jnp.dtype,
    saved: tuple[jax.Array, jax.Array, jax.Array],
    grads: Moments,
) -> tuple[jax.Array]:
    x, mean, rstd = saved
    mean, rstd = widen(mean.astype(stats)), widen(rstd.astype(stats))
    y = (widen(x) - mean) * rstd
    g, dmean, drstd = grads
    count = math.prod(x.shape[a] for a in axes)
    dx = rstd * (g - mean_over(g, axes) - y * (mean_over(g * y, axes) + rstd * drstd / count))
    dx = dx + dmean / count
    return (dx.astype(x.dtype),)


@with_gradient(
    _standardize_backward, saves=lambda moments, x, *_: (x, *moments[1:]), static=(1, 2, 3)
)
def standardize(x: jax.Array, axes: tuple[int, ...], eps: float, stats: jnp.dtype) -> Moments:
    """Shift and scale to mean 0 and variance 1 along ``axes``.

    Args:
        x: Data.
        axes: Axes that share a mean, not negative.
        eps: Added to the (biased) variance.
        stats: Dtype in which torch keeps the moments for its backward pass.

    Returns:
        Standardized values, mean and reciprocal standard deviation (axes kept with size 1),
        all in the compute dtype.
    """
    wide = widen(x)
    mean = mean_over(wide, axes)
    centered = wide - mean
    rstd = lax.rsqrt(mean_over(centered * centered, axes) + eps)
    return centered * rstd, mean, rstd


def stats_dtype(x: jax.Array, *params: jax.Array | None) -> jnp.dtype:
    """The dtype of torch's moments: that of the parameters, or that of the data without them."""
    return next((p.dtype for p in params if p is not None), x.dtype)


def affine(y: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    """``y * weight + bias``, each optional."""
    y = y if weight is None else y * broadcast_to(widen(weight), y.shape)
    return y if bias is None else y + broadcast_to(widen(bias), y.shape)


def per_channel(v: jax.Array, ndim: int) -> jax.Array:
    """A per-channel vector shaped to broadcast along axis 1."""
    return v.reshape(-1, *(1,) * (ndim - 2))


def channel_affine(y: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    """``y * weight + bias`` with per-channel vectors, each optional."""
    weight = None if weight is None else per_channel(weight, y.ndim)
    return affine(y, weight, None if bias is None else per_channel(bias, y.ndim))


@op("aten.native_layer_norm.default", reads=(0, 2), flops=("input", 0, 8), fusing=Fusing.CHEAP)
def native_layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
) -> Moments:
    """Layer norm over the last axes; also mean and reciprocal standard deviation."""
    kept = x.ndim - len(normalized_shape)
    stats = stats_dtype(x, weight, bias)
    rows = x.reshape(math.prod(x.shape[:kept]), math.prod(x.shape[kept:]))
    scale = None if weight is None else weight.reshape(-1)
    shift = None if bias is None else bias.reshape(-1)
    y, mean, rstd = normalize_rows(rows, scale, shift, eps, stats)
    moments = x.shape[:kept] + (1,) * len(normalized_shape)
    mean, rstd = (lax.stop_gradient(m.astype(stats)).reshape(moments) for m in (mean, rstd))
    return y.astype(x.dtype).reshape(x.shape), mean, rstd


@op("aten.layer_norm.default", reads=(0, 2), flops=("input", 0, 8), fusing=Fusing.CHEAP)
def layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> jax.Array:
    """Layer norm over the last ``len(normalized_shape)`` axes."""
    del cudnn_enable
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


def _in_groups(x: jax.Array, groups: int) -> jax.Array:
    n, c, *size = x.shape
    return x.reshape(n, groups, c // groups * math.prod(size))


def _group_norm(
    x: jax.Array,
    groups: int,
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
) -> Moments:
    stats = stats_dtype(x, weight, bias)
    y, mean, rstd = standardize(_in_groups(x, groups), (2,), eps, stats)
    if weight is not None and x.shape[0] and not math.prod(x.shape[2:]):
        # The mean of no places is NaN, and so is torch's gradient of a weight for them.
        weight = weight * jnp.nan
    y = channel_affine(y.reshape(x.shape), weight, bias)
    return y.astype(x.dtype), mean[..., 0].astype(stats), rstd[..., 0].astype(stats)


@op("aten.group_norm.default", reads=(0, 2), flops=("input", 0, 8), fusing=Fusing.CHEAP)
def group_norm(
    x: jax.Array,
    num_groups: int,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> jax.Array:
    """Norm over groups of channels of ``(N, C, ...)``."""
    del cudnn_enabled
    return _group_norm(x, num_groups, weight, bias, eps)[0]


@op("aten.native_group_norm.default", reads=(0, 1), flops=("input", 0, 8), fusing=Fusing.CHEAP)
def native_group_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float,
) -> Moments:
    """Group norm; also mean and reciprocal standard deviation ``(N, group)``."""
    return _group_norm(x, group, weight, bias, eps)


class UntrackedStatistics(SambaError):
    """Instance norm should update running statistics, which its exported op cannot."""

    deviation = "instance-norm-statistics"

    def __init__(self) -> None:
        super().__init__(
            "aten.instance_norm: found running statistics with use_input_stats=True; torch "
            "updates them behind the graph's back. Use track_running_stats=False, or eval()"
        )


@op("aten.instance_norm.default", reads=(0, 1, 3, 4), flops=("input", 0, 8), fusing=Fusing.CHEAP)
def instance_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    running_mean: jax.Array | None,
    running_var: jax.Array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> jax.Array:
    """Norm over the places of each channel of each sample of ``(N, C, ...)``.

    Raises:
        UntrackedStatistics: If running statistics would have to be updated.
    """
    if use_input_stats:
        if running_mean is not None:
            raise UntrackedStatistics
        return _group_norm(x, x.shape[1], weight, bias, eps)[0]
    if running_mean is None or running_var is None:
        raise UntrackedStatistics
    mean, var = lax.stop_gradient((widen(running_mean), widen(running_var)))
    rstd = per_channel(lax.rsqrt(var + eps), x.ndim)
    y = (widen(x) - per_channel(mean, x.ndim)) * rstd
    return channel_affine(y, weight, bias).astype(x.dtype)


@op("aten._fused_rms_norm.default", reads=(0, 2), flops=("input", 0, 4), fusing=Fusing.CHEAP)
def fused_rms_norm(
    x: jax.Array, normalized_shape: Sequence[int], weight: jax.Array | None, eps: float | None
) -> tuple[jax.Array, jax.Array]:
    """Scale to a mean square of 1 over the last axes; also the reciprocal root mean square."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    wide = widen(x)
    if eps is None:
        eps = float(jnp.finfo(wide.dtype).eps)
    rrms = lax.rsqrt(mean_over(wide * wide, axes) + eps)
    return affine(wide * rrms, weight, None).astype(x.dtype), rrms


@op("aten.rms_norm.default", reads=(0, 2), flops=("input", 0, 4), fusing=Fusing.CHEAP)
def rms_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    eps: float | None = None,
) -> jax.Array:
    """Scale to a mean square of 1 over the last ``len(normalized_shape)`` axes."""
    return fused_rms_norm(x, normalized_shape, weight, eps)[0]


@op("aten._weight_norm_interface.default", reads=(0, 1), flops=("input", 0, 3))
def weight_norm_interface(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """``v`` scaled to the norms ``g`` along all axes but ``dim``; also the norms of v, widened."""
    axes = tuple(a for a in range(v.ndim) if a != dim % v.ndim)
    wide = widen(v)
    norm = jnp.sqrt(reduce_kept(wide * wide, axes))
    return (wide * (widen(g) / norm)).astype(v.dtype), lax.stop_gradient(norm)


@op("aten._weight_norm.default", reads=(0, 1), flops=("input", 0, 3))
@widened
def weight_norm(v: jax.Array, g: jax.Array, dim: int = 0) -> jax.Array:
    """``v`` scaled to the norms ``g`` along all axes but ``dim`` (-1: over all of it)."""
    if dim == -1:
        return v * (g / jnp.sqrt(reduce_all(v * v)))
    return weight_norm_interface(v, g, dim)[0]
