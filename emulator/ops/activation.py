"""Lowerings of activation functions.

Where torch picks a subgradient (at 0, at the knees of hardtanh) or lets NaN through,
the formulas are written so that autodiff gives the same.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.ops.precision import real, widen, widened
from emulator.ops.registry import op
from pef_schema.program import DType


@op("aten.relu.default", reads=(0,), cheap=True)
def relu(x: jax.Array) -> jax.Array:
    """``max(x, 0)``; NaN stays, and its gradient passes."""
    return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)


@op("aten.gelu.default", reads=(0,), cheap=True)
@widened
def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """Gaussian error linear unit, exact or with the tanh approximation."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + jnp.tanh(inner))
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


@op("aten.silu.default", reads=(0,), cheap=True)
@widened
def silu(x: jax.Array) -> jax.Array:
    """``x * sigmoid(x)``."""
    return x * jax.nn.sigmoid(x)


@jax.custom_vjp
def _sigmoid(x: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(widen(x)).astype(x.dtype)


def _sigmoid_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(y)
    return ((widen(g) * (wide * (1 - wide))).astype(y.dtype),)


# Like torch's, the gradients of sigmoid, tanh and softmax start from the rounded result.
_sigmoid.defvjp(lambda x: (_sigmoid(x),) * 2, _sigmoid_backward)


@op("aten.sigmoid.default", reads=(0,), cheap=True)
def sigmoid(x: jax.Array) -> jax.Array:
    """Logistic function; integers give float32."""
    return _sigmoid(real(x))


@jax.custom_vjp
def _tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(widen(x)).astype(x.dtype)


def _tanh_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(y)
    return ((widen(g) * (1 - wide * wide)).astype(y.dtype),)


_tanh.defvjp(lambda x: (_tanh(x),) * 2, _tanh_backward)


@op("aten.tanh.default", reads=(0,), cheap=True)
def tanh(x: jax.Array) -> jax.Array:
    """Hyperbolic tangent; integers give float32."""
    return _tanh(real(x))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax_along(x: jax.Array, axis: int) -> jax.Array:
    return jax.nn.softmax(widen(x), axis=axis).astype(x.dtype)


def _softmax_backward(axis: int, y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(y)
    gy = widen(g) * wide
    return ((gy - wide * jnp.sum(gy, axis=axis, keepdims=True)).astype(y.dtype),)


_softmax_along.defvjp(lambda x, axis: (_softmax_along(x, axis),) * 2, _softmax_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _log_softmax_along(x: jax.Array, axis: int) -> jax.Array:
    return jax.nn.log_softmax(widen(x), axis=axis).astype(x.dtype)


def _log_softmax_backward(axis: int, y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(g)
    total = jnp.sum(wide, axis=axis, keepdims=True)
    return ((wide - jnp.exp(widen(y)) * total).astype(y.dtype),)


_log_softmax_along.defvjp(lambda x, axis: (_log_softmax_along(x, axis),) * 2, _log_softmax_backward)


def _softmax(x: jax.Array, dim: int, dtype: DType | None, *, log: bool) -> jax.Array:
    y = x if dtype is None else x.astype(TO_NUMPY[dtype])
    fn = _log_softmax_along if log else _softmax_along
    return fn(y[None], 0)[0] if x.ndim == 0 else fn(y, dim)


@op("aten.softmax.int", reads=(0,))
def softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Softmax along ``dim``, computed in ``dtype`` if given."""
    return _softmax(x, dim, dtype, log=False)


@op("aten.log_softmax.int", reads=(0,))
def log_softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Logarithm of the softmax along ``dim``, computed in ``dtype`` if given."""
    return _softmax(x, dim, dtype, log=True)


@op("aten._softmax.default", reads=(0,))
def core_softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """Softmax as core ATen has it."""
    return _softmax(x, dim, DType.FLOAT32 if half_to_float else None, log=False)


@op("aten._log_softmax.default", reads=(0,))
def core_log_softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """Log-softmax as core ATen has it."""
    return _softmax(x, dim, DType.FLOAT32 if half_to_float else None, log=True)
