"""Exponentials that are right where XLA's lose digits or infinities."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["cosh", "exp", "exp2", "sinh"]


@jax.custom_jvp
def exp(x: jax.Array) -> jax.Array:
    """``e ** x``.

    XLA's is a large finite number times a power of two, at infinity too. Added to a product, both
    become one fused operation that never rounds the first to infinity: ``exp(x) - t * x`` is then
    ``-inf`` at infinity, where it is NaN. A choice in between keeps them apart.

    Example:
        >>> x = jnp.asarray([0.0, jnp.inf])
        >>> jax.jit(lambda x, t: exp(x) - t * x)(x, jnp.asarray([1.0, 2.0])).tolist()
        [1.0, nan]
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.exp(x)  # integers too, as floats
    return jnp.where(x == jnp.inf, jnp.inf, jnp.exp(x))


@exp.defjvp
def _derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = exp(*primals)
    return y, tangents[0] * y


_FARTHEST = 1100
"""No power of two beyond this exponent is a number of any type but zero and infinity."""


@jax.custom_jvp
def exp2(x: jax.Array) -> jax.Array:
    """``2 ** x``, exact for whole numbers; XLA's is ``exp(x * log(2))``, off by ``x`` roundings.

    Example:
        >>> exp2(jnp.asarray([100.0, -1.0], jnp.float32)).tolist() == [2.0**100, 0.5]
        True
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.exp2(x)
    whole = jnp.clip(lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), -_FARTHEST, _FARTHEST)
    exponent = jnp.where(x == x, whole, 0).astype(jnp.int32)
    half = exponent // 2  # in two steps: the power itself may be none of the type
    part = jnp.exp((x - whole) * math.log(2))
    return part * _power_of_two(half, x.dtype) * _power_of_two(exponent - half, x.dtype)


@exp2.defjvp
def _derivative_of_exp2(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = exp2(*primals)
    return y, tangents[0] * y * math.log(2)


def _power_of_two(exponent: jax.Array, dtype: Any) -> jax.Array:
    """By its bits."""
    info = jnp.finfo(dtype)
    bits = jnp.int64 if info.bits == 64 else jnp.int32
    least = int(info.minexp)
    biased = jnp.maximum(exponent, least - 1).astype(bits) + (1 - least)
    top = jnp.minimum(biased, 2 ** (info.bits - 1 - info.nmant) - 1)
    return lax.bitcast_convert_type(top << info.nmant, dtype)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Half of ``exp(|x|)`` and of its inverse; the first by its root, which does not overflow."""
    size = jnp.abs(x)
    root = exp(0.5 * size)
    return 0.5 * root * root, 0.5 * exp(-size)


@jax.custom_jvp
def cosh(x: jax.Array) -> jax.Array:
    """Hyperbolic cosine; XLA's loses digits as a real argument grows."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.cosh(x)
    large, small = _halves(x)
    return large + small


@cosh.defjvp
def _derivative_of_cosh(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return cosh(*primals), tangents[0] * sinh(*primals)


@jax.custom_jvp
def sinh(x: jax.Array) -> jax.Array:
    """Hyperbolic sine; XLA's loses digits as a real argument grows."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.sinh(x)
    large, small = _halves(x)
    far = jnp.where(x < 0, small - large, large - small)
    return jnp.where(jnp.abs(x) < 1, lax.sinh(x), far)


@sinh.defjvp
def _derivative_of_sinh(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return sinh(*primals), tangents[0] * cosh(*primals)
