"""Lowerings of softmax, and of scaled dot product attention, which has one inside.

Like torch's, the gradients of softmaxes start from the rounded result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import widen
from emulator.op_facts.facts import Fusing
from emulator.op_facts.scratch import causal_blocks
from emulator.ops._contractions import matmul_wide
from emulator.ops._gradient import saves_result, with_gradient
from emulator.ops._reduction import large_part, peak_within, sum_within
from emulator.ops.random import drop_factors
from emulator.ops.registry import op
from pef_schema.program import DType

_softmax_op = partial(op, reads=(0,), flops=("input", 0, 5), fusing=Fusing.DEAR)


@cache
def _along(part: Callable[..., jax.Array], axis: int) -> Callable[..., jax.Array]:
    """A function along an axis, the same object for the same arguments."""
    return partial(part, axis=axis)


def _plain(x: jax.Array, axis: int) -> jax.Array:
    e = jnp.exp(x - peak_within(x, axis))
    return e / sum_within(e, axis)


def _safe(x: jax.Array, axis: int) -> jax.Array:
    """A line of nothing but -inf gives zeros, as in torch."""
    top = peak_within(x, axis)
    top = jnp.where(top == -jnp.inf, jnp.zeros((), x.dtype), top)
    e = jnp.exp(x - top)
    total = sum_within(e, axis)
    return e / jnp.where(total == 0, jnp.ones((), x.dtype), total)


def _log(x: jax.Array, axis: int) -> jax.Array:
    shifted = x - peak_within(x, axis)
    return shifted - jnp.log(sum_within(jnp.exp(shifted), axis))


def _gradient(y: jax.Array, g: jax.Array, axis: int) -> jax.Array:
    gy = g * y
    return gy - y * sum_within(gy, axis)


def _log_gradient(y: jax.Array, g: jax.Array, axis: int) -> jax.Array:
    return g - jnp.exp(y) * sum_within(g, axis)


Form = Callable[..., jax.Array]
"""One of the functions above: a softmax of wide numbers along an axis."""


def _backward(form: Form, axis: int, y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    gradient = _log_gradient if form is _log else _gradient
    return (large_part(_along(gradient, axis), widen(y), widen(g)).astype(y.dtype),)


@with_gradient(_backward, saves=saves_result, static=(0, 2))
def _softmax_along(form: Form, x: jax.Array, axis: int) -> jax.Array:
    return large_part(_along(form, axis), widen(x)).astype(x.dtype)


def _softmax(form: Form, x: jax.Array, dim: int, dtype: DType | None) -> jax.Array:
    y = x if dtype is None else x.astype(TO_NUMPY[dtype])
    return _softmax_along(form, y[None], 0)[0] if x.ndim == 0 else _softmax_along(form, y, dim)


@_softmax_op("aten.softmax.int")
def softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Softmax along ``dim``, computed in ``dtype`` if given."""
    return _softmax(_plain, x, dim, dtype)


@_softmax_op("aten.log_softmax.int")
def log_softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Logarithm of the softmax along ``dim``, computed in ``dtype`` if given."""
    return _softmax(_log, x, dim, dtype)


@_softmax_op("aten._softmax.default")
def core_softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """Softmax as core ATen has it."""
    return _softmax(_plain, x, dim, DType.FLOAT32 if half_to_float else None)


@_softmax_op("aten._log_softmax.default")
def core_log_softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """Log-softmax as core ATen has it."""
    return _softmax(_log, x, dim, DType.FLOAT32 if half_to_float else None)


@_softmax_op("aten._safe_softmax.default")
def safe_softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Softmax along ``dim``; lines of nothing but -inf give zeros."""
    return _softmax(_safe, x, dim, dtype)


_NAME = "aten.scaled_dot_product_attention.default"


@op(
    _NAME,
    reads=(0, 1, 2, 3, 4),
    random=True,
    flops=("attention",),
    products="attention",
    scratch="attention",
    rate=4,
    rounds=(0, 1, 2),
)
def scaled_dot_product_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    attn_mask: jax.Array | None = None,
    dropout_p: float | jax.Array = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    seed: jax.Array | None = None,
    stream: int = 0,
) -> jax.Array:
    """``softmax(q @ k.T * scale + mask) @ v``, with dropout on the softmax.

    Args:
        q: Queries ``(..., H, L, E)``.
        k: Keys ``(..., H, S, E)``; with ``enable_gqa`` H may be a divisor of the queries' H.
        v: Values ``(..., H, S, Ev)``.
        attn_mask: Boolean (True takes part) or added to the scores; broadcasts to ``(..., L, S)``.
        dropout_p: Rate, a number or a 0-d array.
        is_causal: Query i sees keys up to i.
        scale: ``1 / sqrt(E)`` by default.
        enable_gqa: Each head of k and v serves a group of query heads.
        seed, stream: Random state, read only if there is dropout.

    Returns:
        Array ``(..., H, L, Ev)``.
    """
    if not v.size:  # before torch looks at whether they fit
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    if enable_gqa:
        k = jnp.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
        v = jnp.repeat(v, q.shape[-3] // v.shape[-3], axis=-3)
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    queries, keys = q.shape[-2], k.shape[-2]
    whole = (*jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2]), queries, keys)
    factors = drop_factors(whole, widen(q).dtype, dropout_p, seed, stream, op=_NAME)

    def of_queries(begin: int, end: int, stop: int) -> jax.Array:
        """The results of some queries, which see no key from ``stop`` on."""
        scores = matmul_wide(q[..., begin:end, :], jnp.swapaxes(k[..., :stop, :], -1, -2)) * factor
        minus = jnp.asarray(-jnp.inf, scores.dtype)
        if is_causal:
            scores = jnp.where(jnp.tri(end - begin, stop, begin, dtype=bool), scores, minus)
        if attn_mask is not None:
            if attn_mask.dtype == jnp.bool_:
                scores = jnp.where(attn_mask, scores, minus)
            else:
                scores = scores + widen(attn_mask)
        p = _softmax_along(_safe, scores, -1)
        p = p if factors is None else p * factors[..., begin:end, :stop]
        return matmul_wide(p.astype(q.dtype), v[..., :stop, :]).astype(q.dtype)

    blocks = causal_blocks(queries, keys) if is_causal and attn_mask is None else ()
    parts = [of_queries(*block) for block in blocks or ((0, queries, keys),)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -2)
