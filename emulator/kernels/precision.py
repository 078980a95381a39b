"""In which precision an op computes, as torch's CPU kernels do it, and how results are rounded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

LOW = frozenset({jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)})
"""Floating dtypes whose arithmetic happens in float32."""


def compute_dtype(dtype: Any) -> Any:
    """The dtype in which values of ``dtype`` are computed with (torch calls it opmath).

    Args:
        dtype: Element type of an operand.

    Returns:
        float32 for bfloat16 and float16, else ``dtype`` itself.
    """
    return jnp.dtype(jnp.float32) if jnp.dtype(dtype) in LOW else jnp.dtype(dtype)


def widen(x: jax.Array) -> jax.Array:
    """Cast to :func:`compute_dtype`; a no-op for wide types."""
    return x.astype(compute_dtype(x.dtype))


def product_precision(dtype: Any) -> lax.Precision | None:
    """How exact a product of factors of ``dtype`` is to be.

    Args:
        dtype: Element type of the factors.

    Returns:
        None, for what holds where it is traced (:mod:`emulator.trace_settings`); the default
        for bfloat16 and float16, whose products float32 holds as they are.
    """
    return lax.Precision.DEFAULT if jnp.dtype(dtype) in LOW else None


def _is_low(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.dtype in LOW


def widened(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Run a lowering in float32 where its operands are narrower, and round its results once.

    Args:
        lower: A lowering whose results have the dtype of its operands.

    Returns:
        The same lowering: bfloat16 and float16 operands are widened first and floating
        results are cast back to the narrow dtype.
    """

    @functools.wraps(lower)
    def run(*args: Any, **kwargs: Any) -> Any:
        narrow = next((a.dtype for a in (*args, *kwargs.values()) if _is_low(a)), None)
        if narrow is None:
            return lower(*args, **kwargs)
        wide = [widen(a) if _is_low(a) else a for a in args]
        named = {k: widen(v) if _is_low(v) else v for k, v in kwargs.items()}
        result = lower(*wide, **named)

        def back(y: jax.Array) -> jax.Array:
            return y.astype(narrow) if jnp.issubdtype(y.dtype, jnp.floating) else y

        return tuple(back(y) for y in result) if isinstance(result, tuple) else back(result)

    return run


def real(x: jax.Array) -> jax.Array:
    """Integers and booleans as float32, torch's default dtype; all else as it is."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


_mlir, _ad, _batching = (cast("Any", module) for module in (mlir, ad, batching))  # typed in part


def _by_bits(x: jax.Array) -> jax.Array:
    """Round to nearest, ties to even, on the bits; NaN keeps its upper half and stays quiet."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    upper = lax.shift_right_logical(bits, np.uint32(16))
    carried = bits + np.uint32(0x7FFF) + (upper & np.uint32(1))
    rounded = lax.shift_right_logical(carried, np.uint32(16))
    rounded = lax.select(x != x, upper | np.uint32(0x40), rounded)
    return lax.bitcast_convert_type(rounded.astype(jnp.uint16), jnp.bfloat16)


def _by_conversion(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


_round = Primitive("round_to_bfloat16")
_round.def_abstract_eval(lambda x: x.update(dtype=np.dtype(jnp.bfloat16)))
_round.def_impl(jax.jit(_by_bits))
_mlir.register_lowering(_round, _mlir.lower_fun(_by_bits, multiple_results=False), platform="cpu")
_mlir.register_lowering(_round, _mlir.lower_fun(_by_conversion, multiple_results=False))
_batching.defvectorized(_round)
_ad.deflinear2(_round, lambda g, _: [g.astype(jnp.float32)])


def narrow(x: jax.Array, dtype: Any) -> jax.Array:
    """``x.astype(dtype)`` for what was computed in float32.

    XLA:CPU converts float32 to bfloat16 at less than half of the speed of the same rounding written
    on the bits. But a conversion that two fusions read is made once, and these operations in both:
    for results that have one reader, or that :func:`emulator.kernels.unfused.compile_apart` keeps.

    Args:
        x: An array of a floating type.
        dtype: The type to round to.

    Returns:
        The same values, NaN as NaN. The gradient is a conversion back.

    Example:
        >>> import jax.numpy as jnp
        >>> [float(v) for v in narrow(jnp.asarray([1.0, 1.005, -jnp.inf, jnp.nan]), jnp.bfloat16)]
        [1.0, 1.0078125, -inf, nan]
    """
    if x.dtype == jnp.float32 and jnp.dtype(dtype) == jnp.bfloat16:
        return cast("jax.Array", _round.bind(x))
    return x.astype(dtype)
