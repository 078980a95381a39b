"""Lowerings: arithmetic of tensors and scalars."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import LOW
from emulator.op_facts.facts import Fusing
from emulator.ops import _slopes as slopes
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import (
    Operand,
    cast,
    constant,
    converted,
    elementwise,
    is_complex,
    is_float,
    is_number,
    result_type,
)
from emulator.ops.pointwise_math import power_of_integers
from emulator.ops.registry import pointwise
from pef_schema.program import DType

_MAX_SQUARINGS = 16
"""Whole exponents up to here are computed by repeated squaring."""


@pointwise(*("aten.add.Tensor", "aten.add.Scalar"), reads=(), complex=True, ranges=("sum",))
def add(x: Operand, other: Operand, alpha: float = 1) -> jax.Array:
    """``x + alpha * other``; booleans add as logical or."""
    if is_number(other) and other * alpha == 0 and math.copysign(1, other * alpha) > 0:
        return elementwise(lambda a, _: _plus_zero(a), x, other)
    return elementwise(lambda a, b: a + _scaled(b, alpha), x, other)


def _plus_zero_backward(_: None, g: jax.Array) -> tuple[jax.Array]:
    return (g,)


@with_gradient(_plus_zero_backward, saves=lambda _y, *_: None)
def _plus_zero(x: jax.Array) -> jax.Array:
    """``x + 0.0``, which XLA takes for ``x``: -0.0 becomes 0.0."""
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x)


@pointwise(
    *("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", "aten.subtract.Scalar"),
    reads=(),
    complex=True,
    ranges=("difference",),
)
def sub(x: Operand, other: Operand, alpha: float = 1) -> jax.Array:
    """``x - alpha * other``."""
    if is_number(other):
        return add(x, other, -alpha)
    return elementwise(lambda a, b: a - _scaled(b, alpha), x, other)


@pointwise(
    *("aten.rsub.Tensor", "aten.rsub.Scalar"), reads=(), complex=True, ranges=("difference",)
)
def rsub(x: Operand, other: Operand, alpha: float = 1) -> jax.Array:
    """``other - alpha * x``."""
    return sub(other, x, alpha)


@pointwise(
    *("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar"),
    reads=(0, 1),
    linear_in=(0, 1),
    complex=True,
    ranges=("product",),
)
def mul(x: Operand, other: Operand) -> jax.Array:
    """``x * other``."""
    return elementwise(lambda a, b: a * b, x, other, exact_scalars=True)


def _divided_backward(
    saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    # Not by the square of the divisor, which overflows before the quotient does: the choice, which
    # changes nothing, keeps XLA from making one division of two.
    quotient = jnp.where(a != a, a, a / b)
    return g / b, -g * (quotient / b)


@with_gradient(_divided_backward)
def _divided(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.div(a, b)


@pointwise(
    *("aten.div.Tensor", "aten.div.Scalar", "aten.divide.Tensor", "aten.divide.Scalar"),
    *("aten.true_divide.Tensor", "aten.true_divide.Scalar"),
    reads=(0, 1),
    linear_in=(0,),
    complex=True,
)
def div(x: Operand, other: Operand) -> jax.Array:
    """True division; integers give float32."""
    return elementwise(_divided, x, other, to_float=True, exact_scalars=True)


@pointwise(
    *("aten.div.Tensor_mode", "aten.divide.Tensor_mode"),
    reads=(0, 1),
    indices="divisors",
    ranges=("quotient",),
)
@pointwise(*("aten.div.Scalar_mode", "aten.divide.Scalar_mode"), reads=(0, 1), ranges=("quotient",))
def div_mode(x: Operand, other: Operand, *, rounding_mode: str | None = None) -> jax.Array:
    """Division rounded as asked: ``None`` true division, ``"trunc"`` toward zero, ``"floor"``."""
    if rounding_mode is None:
        return div(x, other)
    fn = _div_trunc if rounding_mode == "trunc" else _div_floor
    return elementwise(lambda a, b: lax.stop_gradient(fn(a, b)), x, other)


@pointwise(
    "aten.floor_divide.default",
    differentiable=False,
    indices="divisors",
    no_derivative=(0, 1),
    ranges=("quotient",),
)
@pointwise(
    "aten.floor_divide.Scalar", differentiable=False, no_derivative=(0, 1), ranges=("quotient",)
)
def floor_divide(x: Operand, other: Operand) -> jax.Array:
    """``floor(x / other)`` with python's signs."""
    return elementwise(_div_floor, x, other)


@pointwise("aten.remainder.Tensor", reads=(0, 1), indices="divisors", ranges=("rest",))
@pointwise("aten.remainder.Scalar", reads=(0, 1), ranges=("rest",))
@pointwise("aten.remainder.Scalar_Tensor", reads=(0, 1), indices="divisors", no_derivative=(1,))
def remainder(x: Operand, other: Operand) -> jax.Array:
    """Remainder with the sign of the divisor."""
    return elementwise(_remainder_of, x, other)


@pointwise("aten.fmod.Tensor", reads=(0, 1), indices="divisors")
@pointwise("aten.fmod.Scalar", reads=(0, 1))
def fmod(x: Operand, other: Operand) -> jax.Array:
    """Remainder with the sign of the dividend."""
    return elementwise(_rest, x, other)


@pointwise(
    *("aten.neg.default", "aten.negative.default"), reads=(), complex=True, ranges=("negative",)
)
def neg(x: jax.Array) -> jax.Array:
    """``-x``."""
    return -x


@pointwise(
    *("aten.abs.default", "aten.absolute.default"), reads=(0,), complex=True, ranges=("size",)
)
def absolute(x: jax.Array) -> jax.Array:
    """``|x|``; the gradient at zero is zero."""
    return jnp.abs(x) if is_complex(x.dtype) else slopes.absolute(x)


@pointwise("aten.square.default", reads=(0,), complex=True)
def square(x: jax.Array) -> jax.Array:
    """``x * x``; booleans become int64."""
    return power(x, 2)


@pointwise(
    *("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar"),
    complex=True,
    fusing=Fusing.DEAR,
)
def power(base: Operand, exponent: Operand) -> jax.Array:
    """``base ** exponent`` in the promoted dtype, integers by squaring."""
    dtype = result_type(base, exponent)
    if is_number(exponent):
        x = cast(base, dtype)
        if is_complex(dtype):
            return _power_complex(x, exponent)
        if is_float(dtype):
            roots = dtype != np.float16
            return elementwise(lambda a: _power_fixed(a, float(exponent), roots), x)
        return lax.integer_pow(x, int(exponent))
    if is_complex(dtype):
        return elementwise(partial(_power_float, low=""), base, exponent)
    if not is_float(dtype):
        return elementwise(power_of_integers, base, exponent)
    low = dtype.name if dtype in LOW else ""
    return elementwise(partial(_power_float, low=low), base, exponent)


@pointwise(
    *("aten.float_power.Tensor_Tensor", "aten.float_power.Tensor_Scalar"),
    "aten.float_power.Scalar",
    complex=True,
    fusing=Fusing.DEAR,
)
def float_power(base: Operand, exponent: Operand) -> jax.Array:
    """``base ** exponent`` in float64."""
    kind = np.complex128 if is_complex(result_type(base, exponent)) else np.float64
    wide = [x if is_number(x) else x.astype(kind) for x in (base, exponent)]
    return power(*wide)


@pointwise("aten.addcmul.default", complex=True)
def addcmul(x: jax.Array, first: jax.Array, second: jax.Array, *, value: float = 1) -> jax.Array:
    """``x + value * first * second``."""
    return elementwise(lambda a, b, c: a + _scaled(b, value) * c, x, first, second)


def _ratio_backward(
    saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    return g / b, -g * (a / (b * b))


@with_gradient(_ratio_backward)
def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.div(a, b)


@pointwise("aten.addcdiv.default", complex=True)
def addcdiv(x: jax.Array, first: jax.Array, second: jax.Array, *, value: float = 1) -> jax.Array:
    """``x + value * first / second``."""
    return elementwise(lambda a, b, c: a + _ratio(_scaled(b, value), c), x, first, second)


@pointwise("aten.lerp.Scalar", "aten.lerp.Tensor", complex=True)
def lerp(start: jax.Array, end: jax.Array, weight: Operand) -> jax.Array:
    """``start + weight * (end - start)``, from the nearer end as torch does."""

    def mix(a: jax.Array, b: jax.Array, w: jax.Array) -> jax.Array:
        return _mixed(a, b, w)

    return elementwise(mix, start, end, weight, exact_scalars=True)


def _mixed_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    a, b, w = saved
    return g * (1 - w), g * w, g * (b - a)


@with_gradient(_mixed_backward)
def _mixed(a: jax.Array, b: jax.Array, w: jax.Array) -> jax.Array:
    far = jnp.abs(w) < 0.5
    return jnp.where(far, a + w * (b - a), b - (b - a) * (1 - w))


@pointwise("aten._to_copy.default", reads=(), complex=True, elements="same")
def to_copy(x: jax.Array, *, dtype: DType | None = None) -> jax.Array:
    """A copy in another dtype; floats are cut to integers, complex numbers to their real part."""
    return x if dtype is None else converted(x, TO_NUMPY[dtype])


def _scaled(x: jax.Array, factor: complex) -> jax.Array:
    return x if factor == 1 else x * constant(factor, x.dtype)


def _div_trunc(a: jax.Array, b: jax.Array) -> jax.Array:
    """Division toward zero; XLA may divide by a reciprocal, so whole quotients are rounded."""
    if not is_float(a.dtype):
        return lax.div(a, b)
    return jnp.where(lax.rem(a, b) == 0, jnp.round(a / b), jnp.trunc(a / b))


def _div_floor(a: jax.Array, b: jax.Array) -> jax.Array:
    """Floor division that agrees with the remainder, as ``c10::div_floor_floating``."""
    if not is_float(a.dtype):
        return jnp.floor_divide(a, b)
    rest = lax.rem(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(0.0, a / b).astype(a.dtype), floor)
    return jnp.where(b == 0, a / b, floor)


def _remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    rest = lax.rem(a, b)
    return jnp.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _remainder_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g, -g * _div_floor(*saved)


@with_gradient(_remainder_backward)
def _remainder_of(a: jax.Array, b: jax.Array) -> jax.Array:
    return _remainder(a, b)


def _rest_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g, -g * _div_trunc(*saved)


@with_gradient(_rest_backward)
def _rest(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.rem(a, b)


def _power_fixed_backward(
    exponent: float, roots: bool, x: jax.Array, g: jax.Array
) -> tuple[jax.Array]:
    if exponent == 0:
        return (lax.full_like(g, 0),)
    return (g * (exponent * _power_fixed(x, exponent - 1, roots)),)


@with_gradient(_power_fixed_backward, static=(1, 2))
def _power_fixed(x: jax.Array, exponent: float, roots: bool) -> jax.Array:
    """A fixed exponent: the short cuts torch takes, whole exponents by squaring.

    Torch takes roots in all types but float16: there, -0.0 and minus infinity lose their signs.
    """
    if exponent == 0:
        return lax.full_like(x, 1)
    if abs(exponent) == 0.5:
        if not roots:
            x = jnp.where((x == 0) | jnp.isinf(x), jnp.abs(x), x)
        return lax.sqrt(x) if exponent > 0 else lax.rsqrt(x)
    if abs(exponent) <= _MAX_SQUARINGS and exponent == int(exponent):
        return lax.integer_pow(x, int(exponent))
    return lax.pow(x, lax.full_like(x, exponent))


def _power_complex(x: jax.Array, exponent: complex) -> jax.Array:
    """A fixed exponent: the short cuts torch takes of a complex base."""
    if exponent == 0:
        return lax.full_like(x, 1)
    if exponent == 0.5:
        return lax.sqrt(x)
    if exponent in (2, 3):
        return lax.integer_pow(x, int(exponent.real))
    return _power_float(x, lax.full_like(x, exponent), "")


def _rounded(x: jax.Array, low: str) -> jax.Array:
    info = jnp.finfo(low)
    return lax.reduce_precision(x, info.nexp, info.nmant)


def _overflown(x: jax.Array, low: str) -> jax.Array:
    """Infinite where ``low`` has no number so large; a power of a rounded exponent is torch's."""
    if low:
        x = jnp.where(jnp.isinf(_rounded(x, low)), _rounded(x, low), x)
    return x


def _power_backward(low: str, saved: tuple[Any, ...], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """torch's ``pow_backward_self`` and ``pow_backward_exponent``."""
    base, exponent = saved
    flat = exponent == 0
    less = exponent - 1
    if low:  # rounded: in 16 bits, what comes before an even number may be that number
        less = _rounded(less, low)
    slope = _overflown(lax.pow(base, jnp.where(flat, 1, less)), low)
    slope = _overflown(exponent * slope, low)
    at_zero = (base == 0) & (exponent >= 0)
    growth = lax.pow(base, exponent) * jnp.log(jnp.where(at_zero, 1, base))
    return g * jnp.where(flat, 0, slope), g * jnp.where(at_zero, 0, growth)


@with_gradient(_power_backward, static=(2,))
def _power_float(base: jax.Array, exponent: jax.Array, low: str) -> jax.Array:
    """``base ** exponent`` of floats, ``low`` the name of a 16-bit type that the result has."""
    del low
    return lax.pow(base, exponent)
