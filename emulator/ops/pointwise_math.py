"""Lowerings: functions of one real number, and a few of two."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.op_facts.facts import Fusing
from emulator.ops import _slopes as slopes
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import (
    Operand,
    broadcast_all,
    constant,
    elementwise,
    is_float,
    is_inexact,
    is_number,
    promoted,
)
from emulator.ops._slopes import cosh, exp, exp2, sinh
from emulator.ops.registry import op, pointwise


def greatest_common_divisor(x: jax.Array, other: jax.Array) -> jax.Array:
    """Greatest common divisor, as torch's ``calc_gcd`` has it.

    The minimum of a signed type is its own absolute value there: ``gcd(-128, 6)`` is ``-2`` or
    ``2`` in int8 as remainders have the sign of what is divided. (``jnp.gcd`` does not end there.)

    Args:
        x, other: Integers of one dtype and shape.

    Returns:
        Array of that dtype and shape.
    """

    def going_on(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(pair[0] != 0)

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = pair
        done = a == 0
        rest = lax.rem(b, jnp.where(done, jnp.ones((), a.dtype), a))
        return jnp.where(done, a, rest), jnp.where(done, b, a)

    # Every step's remainder is nearer to zero than its divisor, so the loop ends.
    return lax.while_loop(going_on, step, (jnp.abs(x), jnp.abs(other)))[1]


def least_common_multiple(x: jax.Array, other: jax.Array) -> jax.Array:
    """Least common multiple; wraps around where it does not fit, as torch's does.

    Args:
        x, other: Integers of one dtype and shape.

    Returns:
        Array of that dtype and shape.
    """
    divisor = greatest_common_divisor(x, other)
    # C computes in int at least: the absolute value is taken before 8 or 16 bits are cut off.
    wide = np.int32 if x.dtype.itemsize < 4 else x.dtype
    whole = lax.div(x, jnp.where(divisor == 0, jnp.ones((), x.dtype), divisor))
    product = jnp.abs(whole.astype(wide) * other.astype(wide)).astype(x.dtype)
    return jnp.where(divisor == 0, jnp.zeros((), x.dtype), product)


def power_of_integers(a: jax.Array, b: jax.Array) -> jax.Array:
    """Integer power; a negative exponent leaves only 1 and -1 alive."""
    sign = jnp.where(b % 2 == 0, 1, a)
    inverse = jnp.where(jnp.abs(a) == 1, sign, 0).astype(a.dtype)
    return jnp.where(b < 0, inverse, jnp.power(a, jnp.maximum(b, 0)))


def _step_function(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A lowering that leaves integers as they are; its gradient is zero."""

    def lower(x: jax.Array) -> jax.Array:
        return lax.stop_gradient(elementwise(fn, x)) if is_float(x.dtype) else x

    return lower


_FUNCTIONS: tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...] = (
    (("exp",), exp),
    (("exp2", "special_exp2"), exp2),
    (("expm1", "special_expm1"), lax.expm1),
    (("log",), lax.log),
    (("log2",), jnp.log2),
    (("log10",), jnp.log10),
    (("log1p", "special_log1p"), lax.log1p),
    (("sqrt",), lax.sqrt),
    (("rsqrt",), slopes.rsqrt),
    (("sin",), lax.sin),
    (("cos",), lax.cos),
    (("tan",), lax.tan),
    (("asin", "arcsin"), lax.asin),
    (("acos", "arccos"), lax.acos),
    (("atan", "arctan"), lax.atan),
    (("sinh",), sinh),
    (("cosh",), cosh),
    (("asinh", "arcsinh"), lax.asinh),
    (("acosh", "arccosh"), lax.acosh),
    (("atanh", "arctanh"), lax.atanh),
)
for _names, _fn in _FUNCTIONS:
    pointwise(*(f"aten.{n}.default" for n in _names), reads=(0,), complex=True, fusing=Fusing.DEAR)(
        promoted(_fn, to_float=True)
    )

pointwise("aten.reciprocal.default", reads=(0,), complex=True)(
    promoted(lambda x: 1 / x, to_float=True)
)

for _name, _fn in (("erf", lax.erf), ("erfc", lax.erfc)):
    pointwise(
        *(f"aten.{_name}.default", f"aten.special_{_name}.default"), reads=(0,), fusing=Fusing.DEAR
    )(promoted(_fn, to_float=True))


def _erfinv(x: jax.Array) -> jax.Array:
    """In float64: the slope is exp(y * y), so that an error in y grows by 2 y^2."""
    return lax.erf_inv(x.astype(np.float64)).astype(x.dtype)


op(
    *("aten.erfinv.default", "aten.special_erfinv.default"),
    reads=(0,),
    cheap=True,
    fusing=Fusing.DEAR,
)(promoted(_erfinv, to_float=True))


_STEPS: tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...] = (
    (("ceil",), lax.ceil),
    (("floor",), lax.floor),
    (("trunc", "fix"), jnp.trunc),
    (("round", "special_round"), jnp.round),
)
for _names, _fn in _STEPS:
    op(*(f"aten.{n}.default" for n in _names), reads=(), cheap=True)(_step_function(_fn))


@op("aten.sign.default", reads=(), cheap=True, ranges=("constantly", -1, 1))
def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; the gradient is zero."""
    if x.dtype == np.bool_:
        return x
    return lax.stop_gradient(elementwise(slopes.sign, x))


@op("aten.frac.default", reads=(), cheap=True)
def frac(x: jax.Array) -> jax.Array:
    """The fraction that ``trunc`` takes away; passes the gradient on."""
    return elementwise(lambda a: a - lax.stop_gradient(jnp.trunc(a)), x)


def _ten_to(exponent: int) -> float:
    """A power of ten; infinity above those of float64."""
    return 10.0**exponent if exponent <= sys.float_info.max_10_exp else math.inf


@op("aten.round.decimals", "aten.special_round.decimals", reads=(), cheap=True)
def round_decimals(x: jax.Array, *, decimals: int) -> jax.Array:
    """Rounded half to even after scaling by a power of ten."""
    if not is_float(x.dtype):
        return x

    def scaled(a: jax.Array) -> jax.Array:
        power = constant(_ten_to(abs(decimals)), a.dtype)
        if decimals < 0:
            return jnp.round(a / power) * power
        return jnp.round(a * power) / power

    return lax.stop_gradient(elementwise(scaled, x))


@op("aten.deg2rad.default", reads=(), cheap=True)
def deg2rad(x: jax.Array) -> jax.Array:
    """Degrees to radians."""
    return elementwise(lambda a: a * constant(math.pi / 180, a.dtype), x, to_float=True)


@op("aten.rad2deg.default", reads=(), cheap=True)
def rad2deg(x: jax.Array) -> jax.Array:
    """Radians to degrees."""
    return elementwise(lambda a: a * constant(180 / math.pi, a.dtype), x, to_float=True)


@op("aten.nan_to_num.default", reads=(0,), cheap=True, complex=True)
def nan_to_num(
    x: jax.Array,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> jax.Array:
    """Finite numbers for NaN (0) and infinities (the largest of the dtype) unless given."""
    if not is_float(x.dtype):
        return x
    limit = jnp.finfo(x.dtype)
    high = constant(float(limit.max) if posinf is None else posinf, x.dtype)
    low = constant(float(limit.min) if neginf is None else neginf, x.dtype)
    x = jnp.where(x != x, constant(nan or 0.0, x.dtype), x)
    return jnp.where(x == np.inf, high, jnp.where(x == -np.inf, low, x))


@op("aten.sinc.default", "aten.special_sinc.default", reads=(0,), cheap=True, complex=True)
def sinc(x: jax.Array) -> jax.Array:
    """``sin(pi x) / (pi x)``, 1 at zero."""
    return elementwise(slopes.sinc, x, to_float=True)


@op("aten.logit.default", "aten.special_logit.default", reads=(0,), cheap=True, fusing=Fusing.DEAR)
def logit(x: jax.Array, eps: float | None = None) -> jax.Array:
    """``log(x / (1 - x))`` after limiting ``x`` to ``[eps, 1 - eps]``."""

    def limited(a: jax.Array) -> jax.Array:
        if eps is None:
            return slopes.logit(a)
        low, high = constant(eps, a.dtype), constant(1 - eps, a.dtype)
        return slopes.logit(jnp.where(a < low, low, jnp.where(a > high, high, a)))

    return elementwise(limited, x, to_float=True)


op("aten.atan2.default", "aten.arctan2.default", reads=(0, 1), cheap=True, fusing=Fusing.DEAR)(
    promoted(slopes.atan2, to_float=True)
)
for _name, _function in (
    ("hypot", slopes.hypot),
    ("logaddexp", slopes.log_sum),
    ("logaddexp2", partial(slopes.log_sum, two=True)),
):
    op(f"aten.{_name}.default", reads=(0, 1), cheap=True)(promoted(_function))


@op("aten.xlogy.Tensor", reads=(0, 1), cheap=True, complex=True)
@op(
    *("aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", "aten.special_xlogy.default"),
    *("aten.special_xlogy.self_scalar", "aten.special_xlogy.other_scalar"),
    reads=(0, 1),
    cheap=True,
)
def xlogy(x: Operand, other: Operand) -> jax.Array:
    """``x * log(other)``, 0 where ``x`` is 0."""
    return elementwise(partial(slopes.xlogy, scalar=is_number(other)), x, other, to_float=True)


@op(
    *("aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar"),
    "aten.special_xlog1py.other_scalar",
    reads=(0, 1),
    cheap=True,
)
def xlog1py(x: Operand, other: Operand) -> jax.Array:
    """``x * log1p(other)``, 0 where ``x`` is 0."""
    log = partial(slopes.xlogy, scalar=is_number(other), one_more=True)
    return elementwise(log, x, other, to_float=True)


op("aten.copysign.Tensor", "aten.copysign.Scalar", reads=(0, 1), cheap=True)(
    promoted(slopes.copysign, to_float=True)
)


@op("aten.ldexp.Tensor", reads=(0, 1), cheap=True, complex=True)
def ldexp(x: jax.Array, other: jax.Array) -> jax.Array:
    """``x * 2**other``; as torch's, the gradient by a whole negative exponent is zero."""
    if is_inexact(other.dtype):
        return elementwise(_scaled, x, other, to_float=True)
    slope = power_of_integers(jnp.asarray(2, other.dtype), other)
    return elementwise(_scaled_by_whole, x, other, slope, to_float=True)


def _scaled_by_float_backward(
    saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return g * exp2(saved[1]), g * _scaled(*saved) * math.log(2)


@with_gradient(_scaled_by_float_backward)
def _scaled(x: jax.Array, exponent: jax.Array) -> jax.Array:
    return x * exp2(exponent)


def _scaled_backward(slope: jax.Array, g: jax.Array) -> tuple[jax.Array, None, None]:
    return g * slope, None, None


@with_gradient(_scaled_backward, saves=lambda _y, _x, _exponent, slope: slope)
def _scaled_by_whole(x: jax.Array, exponent: jax.Array, slope: jax.Array) -> jax.Array:
    del slope
    return x * exp2(exponent)


@op("aten.frexp.Tensor", reads=(0,), cheap=True)
def frexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mantissa in ``[0.5, 1)`` and int32 exponent."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    mantissa, exponent = jnp.frexp(lax.stop_gradient(wide))
    return slopes.scaled_by(wide, mantissa, exponent).astype(x.dtype), exponent.astype(np.int32)


@op("aten.heaviside.default", cheap=True, differentiable=False, no_derivative=(0, 1))
def heaviside(x: jax.Array, values: jax.Array) -> jax.Array:
    """0 below zero, 1 above, ``values`` at zero; NaN gives 0 as in torch."""
    return elementwise(lambda a, v: jnp.where(a == 0, v, (a > 0).astype(a.dtype)), x, values)


@op("aten.nextafter.default", reads=(0, 1), cheap=True)
def nextafter(x: jax.Array, other: jax.Array) -> jax.Array:
    """The next representable number after ``x`` towards ``other``; its gradient goes to ``x``."""
    x, other = broadcast_all(x, lax.stop_gradient(other))
    slope = jnp.where(x == other, 0, 1).astype(x.dtype)
    return slopes.with_slope(x, lax.nextafter(lax.stop_gradient(x), other), slope)


for _name, _function in (("gcd", greatest_common_divisor), ("lcm", least_common_multiple)):
    op(f"aten.{_name}.default", cheap=True, differentiable=False)(promoted(_function))
