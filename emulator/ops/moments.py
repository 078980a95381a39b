"""Lowerings: variances, norms, log-sum-exp and other reductions of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import compute_dtype, widen
from emulator.op_facts.facts import Fusing
from emulator.ops import _slopes as slopes
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import (
    DEFAULT_FLOAT,
    elementwise,
    is_complex,
    is_inexact,
    real_type,
)
from emulator.ops._reduction import (
    kept_shape,
    normalize_axes,
    reduce_max,
    reduce_min,
    reduce_sum,
    shaped,
)
from emulator.ops._reshape import reshaped
from emulator.ops.registry import op
from pef_schema.program import DType

Dims = int | tuple[int, ...] | None
Axes = tuple[int, ...]


_reduction = partial(op, reads=(0,), complex=True, flops=("input", 0, 3), fusing=Fusing.REDUCES)


def _squared_size(x: jax.Array) -> jax.Array:
    if not is_complex(x.dtype):
        return jnp.square(x)
    return jnp.square(lax.real(x)) + jnp.square(lax.imag(x))


def _var_mean(
    x: jax.Array, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[jax.Array, jax.Array]:
    """Variance and mean in the wide dtype, by two passes.

    The mean inside the variance is a constant for the gradient: the variance is
    stationary there, so what torch's formula leaves out is zero.
    """
    axes = normalize_axes(dim, x.ndim)
    wide = widen(x)
    count = math.prod(x.shape[a] for a in axes)
    freedom = max(count - (1 if correction is None else correction), 0)
    mean = reduce_sum(wide, axes) / np.asarray(count, wide.dtype)
    centre = lax.stop_gradient(reshaped(mean, kept_shape(x.shape, axes)))
    square = reduce_sum(_squared_size(wide - centre), axes)
    var = square / np.asarray(freedom, square.dtype)
    return shaped(var, x, axes, keepdim), shaped(mean, x, axes, keepdim)


def _var(x: jax.Array, *args: Any) -> jax.Array:
    """Variance over ``n - correction``."""
    return _var_mean(x, *args)[0].astype(real_type(x.dtype))


def _std(x: jax.Array, *args: Any) -> jax.Array:
    """Standard deviation; its gradient is zero where it is zero."""
    return slopes.safe_sqrt(_var_mean(x, *args)[0]).astype(real_type(x.dtype))


def _and_mean(x: jax.Array, *args: Any, root: bool) -> tuple[jax.Array, jax.Array]:
    """Variance or standard deviation, and mean."""
    square, mean = _var_mean(x, *args)
    size = slopes.safe_sqrt(square) if root else square
    return size.astype(real_type(x.dtype)), mean.astype(x.dtype)


def _register(name: str, function: Callable[..., Any]) -> None:
    """A function of variances under its three overloads."""

    @_reduction(f"aten.{name}.correction")
    def corrected(
        x: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        return function(x, dim, correction, keepdim)

    @_reduction(f"aten.{name}.default")
    def of_all(x: jax.Array, unbiased: bool = True) -> Any:
        return function(x, None, int(unbiased), False)

    @_reduction(f"aten.{name}.dim")
    def along(x: jax.Array, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(x, dim, int(unbiased), keepdim)


_register("var", _var)
_register("std", _std)
_register("var_mean", partial(_and_mean, root=False))
_register("std_mean", partial(_and_mean, root=True))


@_reduction("aten.logsumexp.default")
@op("aten.special_logsumexp.default", reads=(0,), flops=("input", 0, 3))
def logsumexp(x: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    """``log(sum(exp(x)))`` without overflow; integers give float32."""
    out = np.dtype(x.dtype) if is_inexact(x.dtype) else DEFAULT_FLOAT
    axes = normalize_axes(dim, x.ndim)
    return shaped(_logsumexp(x.astype(compute_dtype(out)), axes).astype(out), x, axes, keepdim)


def _logsumexp_backward(axes: Axes, saved: Any, g: jax.Array) -> tuple[jax.Array]:
    x, y = saved
    shape = kept_shape(x.shape, axes)
    return (g.reshape(shape) * lax.exp(x - y.reshape(shape)),)


@with_gradient(_logsumexp_backward, saves=lambda y, x, *_: (x, y), static=(1,))
def _logsumexp(x: jax.Array, axes: Axes) -> jax.Array:
    shape = kept_shape(x.shape, axes)
    peak = reduce_max(lax.real(x) if is_complex(x.dtype) else x, axes)
    peak = jnp.where(jnp.isinf(peak), 0, peak)
    return lax.log(reduce_sum(lax.exp(x - reshaped(peak, shape)), axes)) + peak


@_reduction("aten.linalg_vector_norm.default", flops=("input", 0, 2))
def vector_norm(
    x: jax.Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> jax.Array:
    """The ``ord`` norm along dimensions; its gradient is zero where it is zero."""
    x = x if dtype is None else x.astype(TO_NUMPY[dtype])
    x = jnp.abs(x) if is_complex(x.dtype) else x
    axes = normalize_axes(dim, x.ndim)
    value = _norm(widen(x), axes, float(ord)).astype(x.dtype)
    return shaped(value, x, axes, keepdim)


@_reduction(
    *("aten.norm.Scalar", "aten.norm.ScalarOpt_dtype", "aten.norm.ScalarOpt_dim"),
    "aten.norm.ScalarOpt_dim_dtype",
    flops=("input", 0, 2),
)
def norm(
    x: jax.Array,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> jax.Array:
    """The ``p`` norm along dimensions; ``None`` means 2."""
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@op("aten.frobenius_norm.dim", reads=(0,), complex=True, flops=("input", 0, 2))
def frobenius_norm(x: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    """The 2-norm along dimensions."""
    return vector_norm(x, 2, dim, keepdim)


@op("aten.dist.default", reads=(0, 1), complex=True, flops=("input", 0, 3))
def dist(x: jax.Array, other: jax.Array, p: float = 2) -> jax.Array:
    """The ``p`` norm of the difference."""
    return vector_norm(elementwise(lambda a, b: a - b, x, other), p)


@op("aten.renorm.default", reads=(0,), flops=("input", 0, 3))
def renorm(x: jax.Array, p: float, dim: int, maxnorm: float) -> jax.Array:
    """Slices along ``dim`` scaled down so that their ``p`` norm is at most ``maxnorm``."""
    wide = widen(x)
    axes = tuple(a for a in range(x.ndim) if a != dim % x.ndim)
    size = reshaped(_norm(wide, axes, float(p)), kept_shape(x.shape, axes))
    factor = jnp.where(size > maxnorm, maxnorm / (size + 1e-7), 1)
    return (wide * factor).astype(x.dtype)


def _norm_backward(axes: Axes, p: float, saved: Any, g: jax.Array) -> tuple[jax.Array]:
    """torch's ``norm_backward``."""
    x, y = saved
    shape = kept_shape(x.shape, axes)
    y, g, size = y.reshape(shape), g.reshape(shape), jnp.abs(x)
    if p == 0:
        return (jnp.zeros_like(x),)
    if p == 1:
        return (g * slopes.sign(x),)
    if p == 2:
        return (jnp.where(y == 0, 0, x * (g / y)),)
    if math.isinf(p):
        hit = ((size == y) | (x != x)).astype(x.dtype)
        return (slopes.sign(x) * hit * (g / reduce_sum(hit, axes).reshape(shape)),)
    power = lax.pow(size, lax.full_like(size, p - 1)) * slopes.sign(x)
    scale = g * lax.pow(y, lax.full_like(y, 1 - p))
    return (jnp.where((y == 0) | (x == 0), 0, power * scale),)


@with_gradient(_norm_backward, saves=lambda y, x, *_: (x, y), static=(1, 2))
def _norm(x: jax.Array, axes: Axes, p: float) -> jax.Array:
    size = jnp.abs(x)
    if p == 0:
        return reduce_sum((x != 0).astype(x.dtype), axes)
    if p == 1:
        return reduce_sum(size, axes)
    if p == 2:
        return lax.sqrt(reduce_sum(jnp.square(x), axes))
    if math.isinf(p):
        return (reduce_max if p > 0 else reduce_min)(size, axes)
    return lax.pow(
        reduce_sum(lax.pow(size, lax.full_like(size, p)), axes), np.asarray(1 / p, x.dtype)
    )
