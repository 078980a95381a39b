"""Rounding float32 to bfloat16, in a form that XLA:CPU makes vectors of."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["narrow"]

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
