"""Lowerings: comparisons, predicates, logical and bitwise operations, choices between values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.op_facts.facts import Fusing, Rule
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import (
    Operand,
    broadcast_all,
    cast,
    compared,
    elementwise,
    is_float,
    promoted,
    result_type,
)
from emulator.ops.registry import op, pointwise


def _register(
    names: tuple[str, ...],
    overloads: tuple[str, ...],
    lower: Callable[..., jax.Array],
    *,
    complex: bool = False,
    ranges: Rule | None = None,
) -> None:
    full = [f"aten.{name}.{overload}" for name in names for overload in overloads]
    op(*full, cheap=True, differentiable=False, complex=complex, ranges=ranges)(lower)


def _comparison(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lower(x: jax.Array, other: Operand) -> jax.Array:
        return compared(fn, x, other)

    return lower


def _of_one(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A lowering of this file, whoever wrote the function."""

    def lower(x: jax.Array) -> jax.Array:
        return fn(x)

    return lower


def _logical(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lower(x: jax.Array, other: jax.Array) -> jax.Array:
        return compared(fn, x.astype(bool), other.astype(bool))

    return lower


_COMPARISONS: tuple[tuple[tuple[str, ...], Callable[..., jax.Array]], ...] = (
    (("eq",), lax.eq),
    (("ne", "not_equal"), lax.ne),
    (("lt", "less"), lax.lt),
    (("le", "less_equal"), lax.le),
    (("gt", "greater"), lax.gt),
    (("ge", "greater_equal"), lax.ge),
)
for _names, _fn in _COMPARISONS:
    _register(_names, ("Tensor", "Scalar"), _comparison(_fn), complex=_fn in (lax.eq, lax.ne))

_BITWISE: tuple[tuple[str, str, Callable[..., jax.Array]], ...] = (
    ("bitwise_and", "__and__", lax.bitwise_and),
    ("bitwise_or", "__or__", lax.bitwise_or),
    ("bitwise_xor", "__xor__", lax.bitwise_xor),
)
for _name, _operator, _fn in _BITWISE:
    _ranges = ("both",) if _name == "bitwise_and" else None
    _register((_name,), ("Tensor", "Scalar", "Scalar_Tensor"), promoted(_fn), ranges=_ranges)
    _register((_operator,), ("Tensor", "Scalar"), promoted(_fn), ranges=_ranges)

for _name, _fn in (
    ("logical_and", lax.bitwise_and),
    ("logical_or", lax.bitwise_or),
    ("logical_xor", lax.bitwise_xor),
):
    _register((_name,), ("default",), _logical(_fn), complex=True)


def _shift_left(x: jax.Array, bits: jax.Array) -> jax.Array:
    """``x << bits``; zero when every bit is shifted out."""
    gone = (bits < 0) | (bits >= x.dtype.itemsize * 8)
    return jnp.where(gone, 0, lax.shift_left(x, jnp.where(gone, 0, bits)))


def _shift_right(x: jax.Array, bits: jax.Array) -> jax.Array:
    """``x >> bits``, keeping the sign."""
    size = x.dtype.itemsize * 8
    all_out = (bits < 0) | (bits >= size)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    result = shift(x, jnp.where(all_out, size - 1, bits))
    return result if signed else jnp.where(all_out, 0, result)


_SHIFTS: tuple[tuple[str, str, Callable[..., jax.Array]], ...] = (
    ("bitwise_left_shift", "__lshift__", _shift_left),
    ("bitwise_right_shift", "__rshift__", _shift_right),
)
for _name, _operator, _fn in _SHIFTS:
    _register((_name,), ("Tensor", "Tensor_Scalar", "Scalar_Tensor"), promoted(_fn))
    _register((_operator,), ("Tensor", "Scalar"), promoted(_fn))


def _signbit(x: jax.Array) -> jax.Array:
    """Whether the sign bit is set: true of ``-0.0``."""
    return jnp.signbit(x) if is_float(x.dtype) else x < 0


_PREDICATES: tuple[tuple[str, Callable[[jax.Array], jax.Array], bool], ...] = (
    ("bitwise_not", lax.bitwise_not, False),
    ("logical_not", lambda x: ~x.astype(bool), True),
    ("isnan", lambda x: x != x, True),
    ("isinf", jnp.isinf, True),
    ("isfinite", jnp.isfinite, True),
    ("isposinf", lambda x: jnp.isinf(x) & (x > 0), False),
    ("isneginf", lambda x: jnp.isinf(x) & (x < 0), False),
    ("signbit", _signbit, False),
)
"""Functions of one tensor, and whether torch has them for complex numbers."""
for _name, _fn, _complex in _PREDICATES:
    _register((_name,), ("default",), _of_one(_fn), complex=_complex)


@op(
    *("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor"),
    differentiable=False,
    counted=False,
)
def isin(
    elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False
) -> jax.Array:
    """Whether each element is among the test elements."""
    del assume_unique  # only a hint
    dtype = result_type(elements, test_elements)
    flat = jnp.asarray(cast(test_elements, dtype)).reshape(-1)
    hit = jnp.any(jnp.asarray(cast(elements, dtype))[..., None] == flat, axis=-1)
    return ~hit if invert else hit


@op("aten.isclose.default", cheap=True, differentiable=False, complex=True)
def isclose(
    x: jax.Array,
    other: jax.Array,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> jax.Array:
    """Whether ``|x - other| <= atol + rtol * |other|``; equal infinities are close."""

    def close(a: jax.Array, b: jax.Array) -> jax.Array:
        near = a == b
        if equal_nan:
            near |= (a != a) & (b != b)
        if not is_float(a.dtype):
            a, b = a.astype(np.float32), b.astype(np.float32)
        gap = jnp.abs(a - b)
        return near | (jnp.isfinite(gap) & (gap <= atol + jnp.abs(rtol * b)))

    return compared(close, x, other)


@pointwise("aten.maximum.default", ranges=("cut",))
@pointwise("aten.max.other", fusing=Fusing.REDUCES, ranges=("cut",))
def maximum(x: jax.Array, other: jax.Array) -> jax.Array:
    """The larger of two; NaN wins; a tie shares the gradient."""
    return elementwise(partial(_extreme, True), x, other)


@pointwise("aten.minimum.default", ranges=("cut",))
@pointwise("aten.min.other", fusing=Fusing.REDUCES, ranges=("cut",))
def minimum(x: jax.Array, other: jax.Array) -> jax.Array:
    """The smaller of two; NaN wins; a tie shares the gradient."""
    return elementwise(partial(_extreme, False), x, other)


@pointwise("aten.fmax.default")
def fmax(x: jax.Array, other: jax.Array) -> jax.Array:
    """The larger of two; a number wins over NaN; a tie goes to the first."""
    return elementwise(lambda a, b: jnp.where((a >= b) | (b != b), a, b), x, other)


@pointwise("aten.fmin.default")
def fmin(x: jax.Array, other: jax.Array) -> jax.Array:
    """The smaller of two; a number wins over NaN; a tie goes to the first."""
    return elementwise(lambda a, b: jnp.where((a <= b) | (b != b), a, b), x, other)


@pointwise(
    *("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor"),
    ranges=("cut",),
)
def clamp(x: jax.Array, min: Operand = None, max: Operand = None) -> jax.Array:
    """Limit to ``[min, max]``; ``max`` wins where they cross; NaN passes.

    The gradient reaches ``x`` on the limits too, and a limit only where it binds.
    """
    if max is None:
        return elementwise(_at_least, x, min)
    if min is None:
        return elementwise(_at_most, x, max)
    return elementwise(_between, x, min, max)


@pointwise(*("aten.clamp_min.default", "aten.clamp_min.Tensor"), ranges=("cut",))
def clamp_min(x: jax.Array, min: Operand) -> jax.Array:
    """Limit from below."""
    return clamp(x, min=min)


@pointwise(*("aten.clamp_max.default", "aten.clamp_max.Tensor"), ranges=("cut",))
def clamp_max(x: jax.Array, max: Operand) -> jax.Array:
    """Limit from above."""
    return clamp(x, max=max)


@pointwise(
    *("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther"),
    "aten.where.Scalar",
    reads=(0,),
    complex=True,
    ranges=("some_of", 1, 2),
)
def where(condition: jax.Array, x: Operand, other: Operand) -> jax.Array:
    """``x`` where the condition holds, else ``other``."""
    dtype = result_type(x, other)
    mask, a, b = broadcast_all(condition, cast(x, dtype), cast(other, dtype))
    return jnp.where(mask.astype(bool), a, b)


@pointwise(
    *("aten.masked_fill.Scalar", "aten.masked_fill.Tensor"),
    reads=(1,),
    complex=True,
    ranges=("some_of", 0, 2),
)
def masked_fill(x: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    """``value``, in the dtype of ``x``, where the mask holds, else ``x``."""
    x, mask, fill = broadcast_all(x, mask, cast(value, x.dtype))
    return jnp.where(mask.astype(bool), fill, x)


def _extreme_backward(largest: bool, saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    worse, better = saved if largest else saved[::-1]
    shared = jnp.where(worse == better, g / 2, g)
    return jnp.where(worse < better, 0, shared), jnp.where(better < worse, 0, shared)


@with_gradient(_extreme_backward, static=(0,))
def _extreme(largest: bool, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.maximum(a, b) if largest else jnp.minimum(a, b)


def _between_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, low, high = saved
    return (
        jnp.where((x >= low) & (x <= high), g, 0),
        jnp.where((low < high) & (x < low), g, 0),
        jnp.where((high < low) | (x > high), g, 0),
    )


@with_gradient(_between_backward)
def _between(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return _at_most(_at_least(x, low), high)


def _at_least(x: jax.Array, low: jax.Array) -> jax.Array:
    if not is_float(x.dtype):
        return jnp.maximum(x, low)
    nan = lax.stop_gradient(x + low)  # neither comparison holds: one of the two is NaN
    return jnp.where(x >= low, x, jnp.where(x < low, low, nan))


def _at_most(x: jax.Array, high: jax.Array) -> jax.Array:
    if not is_float(x.dtype):
        return jnp.minimum(x, high)
    nan = lax.stop_gradient(x + high)
    return jnp.where(x <= high, x, jnp.where(x > high, high, nan))
