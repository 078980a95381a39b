"""In which precision an op computes, as torch's CPU kernels do it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

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
