"""Lowerings: functions of one real number, and a few of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._promote import elementwise, is_float
from emulator.ops.registry import op

Operand = Any
"""An array or a python scalar."""


def _float_function(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A lowering that turns integers into float32 and computes half types in float32."""

    def lower(x: jax.Array) -> jax.Array:
        return elementwise(fn, x, to_float=True)

    return lower


def _step_function(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A lowering that leaves integers as they are; its gradient is zero."""

    def lower(x: jax.Array) -> jax.Array:
        return lax.stop_gradient(elementwise(fn, x)) if is_float(x.dtype) else x

    return lower


_FUNCTIONS: tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...] = (
    (("exp",), lax.exp),
    (("exp2", "special_exp2"), lax.exp2),
    (("expm1", "special_expm1"), lax.expm1),
    (("log",), lax.log),
    (("log2",), jnp.log2),
    (("log10",), jnp.log10),
    (("log1p", "special_log1p"), lax.log1p),
    (("sqrt",), lax.sqrt),
    (("rsqrt",), lax.rsqrt),
    (("reciprocal",), lambda x: 1 / x),
    (("sin",), lax.sin),
    (("cos",), lax.cos),
    (("tan",), lax.tan),
    (("asin", "arcsin"), lax.asin),
    (("acos", "arccos"), lax.acos),
    (("atan", "arctan"), lax.atan),
    (("sinh",), lax.sinh),
    (("cosh",), lax.cosh),
    (("asinh", "arcsinh"), lax.asinh),
    (("acosh", "arccosh"), lax.acosh),
    (("atanh", "arctanh"), lax.atanh),
    (("erf", "special_erf"), lax.erf),
    (("erfc", "special_erfc"), lax.erfc),
    (("erfinv", "special_erfinv"), lax.erf_inv),
)
for _names, _fn in _FUNCTIONS:
    op(*(f"aten.{n}.default" for n in _names), reads=(0,), cheap=True)(_float_function(_fn))


def _round_even(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; NaN gives 0 as in torch."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


_STEPS: tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...] = (
    (("ceil",), lax.ceil),
    (("floor",), lax.floor),
    (("trunc", "fix"), jnp.trunc),
    (("round", "special_round"), _round_even),
)
for _names, _fn in _STEPS:
    op(*(f"aten.{n}.default" for n in _names), reads=(), cheap=True)(_step_function(_fn))


@op("aten.sign.default", "aten.sgn.default", reads=(), cheap=True)
def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; the gradient is zero."""
    if x.dtype == np.bool_:
        return x
    return lax.stop_gradient(elementwise(_sign, x))
