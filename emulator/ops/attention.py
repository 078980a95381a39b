"""Lowering of scaled dot product attention."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import widen
from emulator.op_facts.facts import Fusing
from emulator.op_facts.scratch import causal_blocks
from emulator.ops import _gemm as gemm
from emulator.ops._gradient import saves_result, with_gradient
from emulator.ops._reduction import large_part, peak_within, sum_within
from emulator.ops.random import drop_factors
from emulator.ops.registry import op
from pef_schema.program import DType


def _softmax_backward(p: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (large_part(_softmax_gradient, p, g),)


def _softmax_gradient(p: jax.Array, g: jax.Array) -> jax.Array:
    gp = g * p
    return gp - p * sum_within(gp, -1)


@with_gradient(_softmax_backward, saves=saves_result)
def _safe_softmax(scores: jax.Array) -> jax.Array:
    """Softmax along the last axis; a row of nothing but -inf gives zeros, as in torch."""
    return large_part(_softmax_part, scores)


def _softmax_part(scores: jax.Array) -> jax.Array:
    top = peak_within(scores, -1)
    top = jnp.where(top == -jnp.inf, jnp.zeros((), scores.dtype), top)
    e = jnp.exp(scores - top)
    total = sum_within(e, -1)
    return e / jnp.where(total == 0, jnp.ones((), scores.dtype), total)


@op("aten._safe_softmax.default", reads=(0,), flops=("input", 0, 5), fusing=Fusing.DEAR)
def safe_softmax(x: jax.Array, dim: int, dtype: DType | None = None) -> jax.Array:
    """Softmax along ``dim``; lines of nothing but -inf give zeros."""
    kind = x.dtype if dtype is None else TO_NUMPY[dtype]
    if x.ndim == 0:
        return safe_softmax(x[None], 0, dtype)[0]
    y = _safe_softmax(jnp.moveaxis(widen(x.astype(kind)), dim, -1))
    return jnp.moveaxis(y, -1, dim).astype(kind)


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

    def of_queries(begin: int, end: int, seen: int) -> jax.Array:
        """The results of some queries, which see no key from ``seen`` on."""
        scores = gemm.matmul(q[..., begin:end, :], jnp.swapaxes(k[..., :seen, :], -1, -2)) * factor
        minus = jnp.asarray(-jnp.inf, scores.dtype)
        if is_causal:
            scores = jnp.where(jnp.tri(end - begin, seen, begin, dtype=bool), scores, minus)
        if attn_mask is not None:
            if attn_mask.dtype == jnp.bool_:
                scores = jnp.where(attn_mask, scores, minus)
            else:
                scores = scores + widen(attn_mask)
        p = _safe_softmax(scores)
        p = p if factors is None else p * factors[..., begin:end, :seen]
        return gemm.matmul(p.astype(q.dtype), v[..., :seen, :]).astype(q.dtype)

    blocks = causal_blocks(queries, keys) if is_causal and attn_mask is None else ()
    parts = [of_queries(*block) for block in blocks or ((0, queries, keys),)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -2)
