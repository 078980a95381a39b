"""Functions whose gradient torch defines otherwise, or that are right where XLA's are not."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.ops._gradient import with_gradient


def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; NaN gives 0 as in torch."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


@jax.custom_jvp
def absolute(x: jax.Array) -> jax.Array:
    """``|x|`` whose gradient at zero is zero."""
    return jnp.abs(x)


absolute.defjvps(lambda dx, _, x: dx * sign(x))


@jax.custom_jvp
def apart(product: jax.Array) -> jax.Array:
    """A product that something is added to, rounded before: infinite if it overflows by itself.

    LLVM makes one operation of a product and a sum, which rounds once. With a choice in between it
    does not.
    """
    return jnp.where(jnp.isinf(product), jnp.copysign(jnp.inf, product), product)


apart.defjvps(lambda dx, _y, _x: dx)


@jax.custom_jvp
def rsqrt(x: jax.Array) -> jax.Array:
    """``1 / sqrt(x)``."""
    return lax.rsqrt(x)


rsqrt.defjvps(lambda dx, y, _: dx * (-0.5 * (y * y * y)))


@jax.custom_jvp
def safe_sqrt(x: jax.Array) -> jax.Array:
    """Square root whose gradient at zero is zero."""
    return lax.sqrt(x)


safe_sqrt.defjvps(lambda dx, root, _: dx * jnp.where(root == 0, 0, 0.5 / root))


def _without_nan_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    blocked = jnp.where(jnp.isfinite(g), 0, jnp.nan).astype(g.dtype)
    return (jnp.where(x == x, g, blocked),)


@with_gradient(_without_nan_backward)
def without_nan(x: jax.Array) -> jax.Array:
    """Zero for NaN; an infinite gradient times that zero is NaN, as in torch."""
    return jnp.where(x != x, 0, x).astype(x.dtype)


@jax.custom_jvp
def sinc(x: jax.Array) -> jax.Array:
    """``sin(pi x) / (pi x)``."""
    angle = jnp.where(x == 0, 1, x * math.pi)
    return jnp.where(x == 0, 1, lax.sin(angle) / angle)


@sinc.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    angle, square = x * math.pi, x * x * math.pi
    flat = square == 0  # of small numbers too, whose square is none
    slope = (angle * lax.cos(angle) - lax.sin(angle)) / jnp.where(flat, 1, square)
    return sinc(x), jnp.where(flat, 0, dx * slope)


@jax.custom_jvp
def logit(x: jax.Array) -> jax.Array:
    """``log(x / (1 - x))``."""
    return lax.log(x / (1 - x))


@logit.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    outside = (x < 0) | (x > 1)
    steep = jnp.where(x == 0, jnp.inf, 1 / (x * (1 - x)))  # at -0.0 too
    return logit(x), dx * jnp.where(outside, jnp.nan, steep)


@jax.custom_jvp
def atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    """Angle of a point."""
    return lax.atan2(y, x)


@atan2.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (y, x), (dy, dx) = primals, tangents
    square = y * y + x * x
    inverse = jnp.where(square == 0, 0, 1 / square)
    return atan2(y, x), dy * (x * inverse) - dx * (y * inverse)


@jax.custom_jvp
def hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Length of a 2-vector."""
    return jnp.hypot(x, y)


hypot.defjvps(
    lambda dx, length, x, _: dx * (x / length), lambda dy, length, _, y: dy * (y / length)
)


def _xlogy_backward(
    scalar: bool, one_more: bool, saved: Any, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = saved
    size = y + 1 if one_more else y
    flat = (x == 0) & (~(size > 0) if scalar else size <= 0)
    return jnp.where(flat, 0, xlogy(g, y, scalar, one_more)), g * x / size


@with_gradient(_xlogy_backward, static=(2, 3))
def xlogy(x: jax.Array, y: jax.Array, scalar: bool = False, one_more: bool = False) -> jax.Array:
    """``x log(y)``, 0 where ``x`` is 0 and ``y`` is a number.

    Args:
        x, y: Floats of one shape.
        scalar: Whether ``y`` is one number, beside which torch masks the gradient at NaN, too.
        one_more: Whether to take the logarithm of ``1 + y``.
    """
    log = lax.log1p if one_more else lax.log
    return jnp.where(y != y, y, jnp.where(x == 0, 0, x * log(y)))


def _log_sum_backward(two: bool, saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    power = exp2 if two else exp
    return g / (1 + power(b - a)), g / (1 + power(a - b))


@with_gradient(_log_sum_backward, static=(2,))
def log_sum(a: jax.Array, b: jax.Array, two: bool = False) -> jax.Array:
    """``log(exp(a) + exp(b))``, or to base two."""
    return jnp.logaddexp2(a, b) if two else jnp.logaddexp(a, b)


@jax.custom_jvp
def copysign(x: jax.Array, sign: jax.Array) -> jax.Array:
    """Magnitude of one number, sign of another."""
    return jnp.copysign(x, sign)


@copysign.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, sign), (dx, _) = primals, tangents
    out = copysign(x, sign)
    # A quotient of denormals is none.
    turned = jnp.where(jnp.signbit(x) == jnp.signbit(sign), 1, -1)
    return out, dx * jnp.where(x == 0, 0, jnp.where(jnp.isfinite(x), turned, out / x))


@jax.custom_jvp
def with_slope(x: jax.Array, value: jax.Array, slope: jax.Array) -> jax.Array:
    """``value``, a function of ``x`` computed elsewhere, with a known derivative."""
    del x, slope
    return value


with_slope.defjvps(lambda dx, _y, _x, _value, slope: dx * slope, None, None)


@jax.custom_jvp
def scaled_by(x: jax.Array, value: jax.Array, exponent: jax.Array) -> jax.Array:
    """``value``, which is ``x / 2**exponent`` computed exactly elsewhere."""
    del x, exponent
    return value


@scaled_by.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, value, exponent), (dx, _, _) = primals, tangents
    # Torch's power of a whole number is one of float32, whatever the type of the gradient.
    least, most = -149, 127
    power = exp2(jnp.clip(exponent, least, most).astype(dx.dtype))
    power = jnp.where(exponent < least, 0, jnp.where(exponent > most, jnp.inf, power))
    return scaled_by(x, value, exponent), dx / power


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


exp.defjvps(lambda dx, y, _: dx * y)


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


exp2.defjvps(lambda dx, y, _: dx * y * math.log(2))


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


cosh.defjvps(lambda dx, _, x: dx * sinh(x))


@jax.custom_jvp
def sinh(x: jax.Array) -> jax.Array:
    """Hyperbolic sine; XLA's loses digits as a real argument grows."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.sinh(x)
    large, small = _halves(x)
    far = jnp.where(x < 0, small - large, large - small)
    return jnp.where(jnp.abs(x) < 1, lax.sinh(x), far)


sinh.defjvps(lambda dx, _, x: dx * cosh(x))
