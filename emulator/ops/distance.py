"""Lowerings of distances, similarities, and the losses made of them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import widened
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import reduce_kept, reduce_sum
from emulator.ops._slopes import absolute, sign
from emulator.ops.loss import MEAN, reduced
from emulator.ops.registry import op


def _sum_last(x: jax.Array, keepdims: bool = False) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        # In a wider type: two of True are 2.
        return jnp.sum(x, -1, keepdims=keepdims).astype(jnp.float32)
    return (reduce_kept if keepdims else reduce_sum)(x, (x.ndim - 1,))


def _largest_backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array]:
    d, largest = saved
    hit = jnp.abs(d) == largest[..., None]
    return (jnp.where(hit, sign(d) * g[..., None], 0),)


@with_gradient(_largest_backward, saves=lambda largest, d: (d, largest))
def _largest(d: jax.Array) -> jax.Array:
    """The largest size along the last axis; each of several equal ones has the whole gradient."""
    return jnp.max(jnp.abs(d), axis=-1)


def _distance(d: jax.Array, p: float) -> jax.Array:
    """The p-norm of the last axis of differences, as ``cdist`` and ``pdist`` have it."""
    return _largest(d) if math.isinf(p) and d.shape[-1] else _norm(d, p)


def _norm(d: jax.Array, p: float, *, keepdims: bool = False) -> jax.Array:
    """The p-norm of the last axis; its gradient at 0 is 0, as torch defines it."""
    size = absolute(d)
    if p == 0:
        return _sum_last((d != 0).astype(d.dtype), keepdims)
    if p == 1:
        return _sum_last(size, keepdims)
    if math.isinf(p):
        return jnp.max(size, axis=-1, keepdims=keepdims)
    moved = size != 0
    powers = jnp.where(moved, jnp.where(moved, size, 1) ** p, 0)
    total = _sum_last(powers, keepdims)
    return jnp.where(total == 0, 0, jnp.where(total == 0, 1, total) ** (1 / p))


@op("aten.pairwise_distance.default", reads=(0, 1), flops=("input", 0, 6))
@widened
def pairwise_distance(
    x1: jax.Array, x2: jax.Array, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> jax.Array:
    """p-norm of ``x1 - x2 + eps`` along the last axis."""
    return _norm(x1 - x2 + eps, p, keepdims=keepdim)


@op("aten.cdist.default", reads=(0, 1), flops=("distance",))
@widened
def cdist(x1: jax.Array, x2: jax.Array, p: float = 2, compute_mode: int | None = None) -> jax.Array:
    """p-norm distances ``(..., P, R)`` of the rows of ``(..., P, M)`` and ``(..., R, M)``.

    Always from differences, the exact one of torch's two ways.
    """
    del compute_mode
    return _distance(x1[..., :, None, :] - x2[..., None, :, :], p)


@op("aten.pdist.default", reads=(0,), flops=("distance",))
@widened
def pdist(x: jax.Array, p: float = 2) -> jax.Array:
    """p-norm distances of all pairs of rows, in the order (0, 1), (0, 2), ..., (1, 2), ..."""
    first, second = np.triu_indices(x.shape[0], 1)
    return _distance(x[first] - x[second], p)


@op("aten.cosine_similarity.default", reads=(0, 1), flops=("input", 0, 6))
@widened
def cosine_similarity(x1: jax.Array, x2: jax.Array, dim: int = 1, eps: float = 1e-8) -> jax.Array:
    """Cosine of the angle along ``dim``; each norm is at least ``eps``."""
    x1, x2 = jnp.broadcast_arrays(x1, x2)
    units = []
    for x in (x1, x2):
        norm = jnp.expand_dims(_norm(jnp.moveaxis(x, dim, -1), 2), dim)
        # The bound is on the value only: torch keeps the gradient of the norm below it.
        bounded = norm + jax.lax.stop_gradient(jnp.maximum(norm, eps) - norm)
        units.append(x / bounded)
    return reduce_sum(units[0] * units[1], (dim % x1.ndim,))


@op("aten.cosine_embedding_loss.default", reads=(0, 1, 2), flops=("input", 0, 6))
@widened
def cosine_embedding_loss(
    x1: jax.Array,
    x2: jax.Array,
    target: jax.Array,
    margin: float = 0.0,
    reduction: int = MEAN,
) -> jax.Array:
    """``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1."""
    tiny = 1e-12  # torch adds it under the root
    dot = _sum_last(x1 * x2)
    square1 = _sum_last(x1 * x1) + tiny
    square2 = _sum_last(x2 * x2) + tiny
    cos = dot / jnp.sqrt(square1 * square2)
    apart = cos - margin
    loss = jnp.where(target == 1, 1 - cos, 0)
    loss = loss + jnp.where(target == -1, jnp.where(apart < 0, 0, apart), 0)
    return reduced(loss, reduction)


@op("aten.triplet_margin_loss.default", reads=(0, 1, 2), flops=("input", 0, 6))
@widened
def triplet_margin_loss(
    anchor: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> jax.Array:
    """How far the negative is from being ``margin`` farther away than the positive."""
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = jnp.minimum(far, pairwise_distance(positive, negative, p, eps))
    short = margin + near - far
    return reduced(jnp.where(short < 0, 0, short), reduction)
