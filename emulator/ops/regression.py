"""Lowerings of elementwise losses: errors, likelihoods and margins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import real, widen, widened
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import broadcast_to, constant, is_float, result_type
from emulator.ops._reduction import reduce_sum
from emulator.ops._slopes import absolute, apart, exp, xlogy
from emulator.ops.activation import log_sigmoid
from emulator.ops.loss import MEAN, reduced
from emulator.ops.registry import op

Loss = Callable[..., jax.Array]


_loss = partial(op, reads=(0, 1), flops=("input", 0, 3), fusing=Fusing.REDUCES)


def _of_dtype(rule: Callable[..., np.dtype], count: int = 2) -> Callable[[Loss], Loss]:
    """Compute a loss in float32 where operands are narrower, and round it once.

    Args:
        rule: The dtype of the loss, from the first operands.
        count: How many operands it goes by.

    Returns:
        A decorator of lowerings. Losses of integers stay as they are summed.
    """

    def decorate(lower: Loss) -> Loss:
        @functools.wraps(lower)
        def run(*args: Any, **kwargs: Any) -> jax.Array:
            dtype = rule(*args[:count])
            wide = [widen(a) if isinstance(a, jax.Array) else a for a in args]
            named = {k: widen(v) if isinstance(v, jax.Array) else v for k, v in kwargs.items()}
            loss = lower(*wide, **named)
            return loss.astype(dtype) if is_float(dtype) else loss

        return run

    return decorate


def _second(x: jax.Array, target: jax.Array) -> np.dtype:
    del x
    return np.dtype(target.dtype)


def _with_float(*operands: jax.Array) -> np.dtype:
    return result_type(*operands, 1.0)


def _rate(x: jax.Array, target: jax.Array) -> np.dtype:
    """An integer rate is float32 before it meets the counts."""
    return result_type(real(x), target)


@_loss("aten.mse_loss.default")
@_of_dtype(result_type)
def mse_loss(x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    """Squared difference."""
    return reduced(jnp.square(x - target), reduction)


@_loss("aten.l1_loss.default")
@_of_dtype(result_type)
def l1_loss(x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    """Absolute difference."""
    return reduced(absolute(x - target), reduction)


def _smooth_backward(
    beta: float, saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def of(d: jax.Array) -> jax.Array:
        near = d * g / beta if beta else jnp.full_like(d, jnp.nan)  # only NaN is nearer than zero
        return jnp.where(d <= -beta, -g, jnp.where(d >= beta, g, near))

    x, target = saved
    return of(x - target), of(target - x)  # both go down at a tie without a beta


@with_gradient(_smooth_backward, static=(2,))
def _smooth(x: jax.Array, target: jax.Array, beta: float) -> jax.Array:
    size = jnp.abs(x - target)
    if beta == 0:
        return size
    return jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)


@_loss("aten.smooth_l1_loss.default")
@_of_dtype(result_type)
def smooth_l1_loss(
    x: jax.Array, target: jax.Array, reduction: int = MEAN, beta: float = 1.0
) -> jax.Array:
    """Squared difference over ``2 * beta`` below ``beta``, absolute difference above."""
    shape = jnp.broadcast_shapes(x.shape, target.shape)
    ends = broadcast_to(x, shape), broadcast_to(target, shape)
    return reduced(_smooth(ends[0], ends[1], beta), reduction)


def _huber_backward(delta: float, d: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(d <= -delta, -g * delta, jnp.where(d >= delta, g * delta, d * g)),)


@with_gradient(_huber_backward, static=(1,))
def _huber(d: jax.Array, delta: float) -> jax.Array:
    size = jnp.abs(d)
    return jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))


@_loss("aten.huber_loss.default")
@_of_dtype(result_type, 1)
def huber_loss(
    x: jax.Array, target: jax.Array, reduction: int = MEAN, delta: float = 1.0
) -> jax.Array:
    """Half the squared difference up to ``delta``, linear above."""
    return reduced(_huber(x - target, delta), reduction)


def _bernoulli_backward(saved: Any, g: jax.Array) -> tuple[jax.Array | None, ...]:
    p, target, weight = saved
    dp = g * (p - target) / jnp.maximum((1 - p) * p, 1e-12)
    dt = g * (jnp.log1p(-p) - jnp.log(p))
    if weight is None:
        return dp, dt, None
    return dp * weight, dt * weight, g * _bernoulli_loss(p, target, None)


@with_gradient(_bernoulli_backward)
def _bernoulli_loss(p: jax.Array, target: jax.Array, weight: jax.Array | None) -> jax.Array:
    """Cross entropy of probabilities, logarithms bounded by -100 as torch has it."""
    log_p = jnp.maximum(jnp.log(p), -100)
    log_q = jnp.maximum(jnp.log1p(-p), -100)
    loss = (target - 1) * log_q - target * log_p
    return loss if weight is None else loss * weight


@op(
    "aten.binary_cross_entropy.default",
    reads=(0, 1, 2),
    flops=("input", 0, 6),
    fusing=Fusing.REDUCES,
    no_derivative=(2,),
)
@widened
def binary_cross_entropy(
    p: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    """Cross entropy of probabilities with targets in ``[0, 1]``."""
    weight = None if weight is None else broadcast_to(weight, p.shape)
    return reduced(_bernoulli_loss(p, target, weight), reduction)


def _logits_loss_backward(saved: Any, g: jax.Array) -> tuple[jax.Array | None, ...]:
    """Factors in torch's order: their product may be zero times infinity in another."""
    x, target, weight, pos_weight = saved
    sigmoid = jax.nn.sigmoid(x)
    if pos_weight is None:
        dx, dt = (sigmoid - target) * g, x * -g
    else:
        t = pos_weight * target
        dx = ((t + 1 - target) * sigmoid - t) * g
        dt = (log_sigmoid(-x) - pos_weight * log_sigmoid(x)) * g
    dw = None if weight is None else g * _logits_loss(x, target, None, pos_weight)
    dp = None if pos_weight is None else -g * target * log_sigmoid(x)
    if weight is None:
        return dx, dt, dw, dp
    return dx * weight, dt * weight, dw, None if dp is None else dp * weight


@with_gradient(_logits_loss_backward)
def _logits_loss(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, pos_weight: jax.Array | None
) -> jax.Array:
    negative = log_sigmoid(x)
    if pos_weight is not None:
        negative = apart(negative * ((pos_weight - 1) * target + 1))
    loss = apart((1 - target) * x) - negative
    return loss if weight is None else loss * weight


@op(
    "aten.binary_cross_entropy_with_logits.default",
    reads=(0, 1, 2, 3),
    flops=("input", 0, 6),
    fusing=Fusing.REDUCES,
    no_derivative=(2, 3),
)
@_of_dtype(_second)
def binary_cross_entropy_with_logits(
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    pos_weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    """Cross entropy of logits with targets in ``[0, 1]``."""
    shape = jnp.broadcast_shapes(
        x.shape, target.shape, *(w.shape for w in (weight, pos_weight) if w is not None)
    )
    weight, pos_weight = [w if w is None else broadcast_to(w, shape) for w in (weight, pos_weight)]
    loss = _logits_loss(broadcast_to(x, shape), broadcast_to(target, shape), weight, pos_weight)
    return reduced(loss, reduction)


@_loss("aten.kl_div.default")
@_of_dtype(result_type)
def kl_div(
    x: jax.Array, target: jax.Array, reduction: int = MEAN, *, log_target: bool = False
) -> jax.Array:
    """Kullback-Leibler divergence of log-probabilities ``x`` from a target distribution."""
    if log_target:
        return reduced(jnp.exp(target) * (target - x), reduction)
    return reduced(xlogy(target, target) - apart(target * x), reduction)


@op("aten.poisson_nll_loss.default", reads=(0, 1), flops=("input", 0, 3))
@_of_dtype(_rate)
def poisson_nll_loss(
    x: jax.Array, target: jax.Array, log_input: bool, full: bool, eps: float, reduction: int
) -> jax.Array:
    """Negative log likelihood of counts under a Poisson rate, or its logarithm."""
    loss = exp(x) - apart(target * x) if log_input else x - apart(target * jnp.log(x + eps))
    if full:
        safe = jnp.where(target > 1, target, 2)
        stirling = safe * jnp.log(safe) - safe + 0.5 * jnp.log(2 * jnp.pi * safe)
        loss = loss + jnp.where(target > 1, stirling, 0)
    return reduced(loss, reduction)


@op("aten.soft_margin_loss.default", reads=(0, 1), flops=("input", 0, 3), no_derivative=(1,))
@_of_dtype(result_type, 1)
def soft_margin_loss(x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    """``log(1 + exp(-target * x))``; as torch's, infinite where the exponential overflows."""
    # The product is negated, not the target: an unsigned one would wrap around.
    return reduced(jnp.log1p(jnp.exp(-(target * x))), reduction)


@op("aten.hinge_embedding_loss.default", reads=(0, 1), flops=("input", 0, 3))
@_of_dtype(result_type, 1)
def hinge_embedding_loss(
    x: jax.Array, target: jax.Array, margin: float = 1.0, reduction: int = MEAN
) -> jax.Array:
    """``x`` where the target is 1, what it lacks to the margin where it is -1."""
    # torch fills a tensor of the input's dtype with the margin, which cuts it for integers
    hinge = jnp.where(target != 1, _clamped(jnp.asarray(constant(margin, x.dtype)) - x), 0)
    return reduced(hinge + jnp.where(target != -1, x, 0), reduction)


def _clamped_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(x >= 0, g, 0),)


@with_gradient(_clamped_backward)
def _clamped(x: jax.Array) -> jax.Array:
    """``max(x, 0)``: NaN stays, and the gradient is torch's of ``clamp_min``, 1 at the bound."""
    return jnp.where(x <= 0, 0, x)


@op("aten.margin_ranking_loss.default", reads=(0, 1, 2), flops=("input", 0, 3))
@_of_dtype(_with_float, 3)
def margin_ranking_loss(
    x1: jax.Array,
    x2: jax.Array,
    target: jax.Array,
    margin: float = 0.0,
    reduction: int = MEAN,
) -> jax.Array:
    """How far ``target * (x1 - x2)`` falls short of the margin."""
    return reduced(_clamped(-target * (x1 - x2) + margin), reduction)


@op(
    "aten.multilabel_margin_loss.default", reads=(0, 1), flops=("input", 0, 3), indices="label_sets"
)
@widened
def multilabel_margin_loss(x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    """Hinge between each labelled and each other class; labels end at the first -1."""
    scores, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    classes = scores.shape[1]
    listed = jnp.cumprod(labels >= 0, axis=1).astype(bool)
    label = jnp.where(listed, labels, 0)
    hits = (label[:, :, None] == jnp.arange(classes)) & listed[:, :, None]
    others = ~jnp.any(hits, axis=1)
    own = jnp.take_along_axis(scores, label, axis=1)
    short = 1 - own[:, :, None] + scores[:, None, :]
    counted = listed[:, :, None] & others[:, None, :] & (short > 0)
    loss = reduce_sum(jnp.where(counted, short, 0), (1, 2)) / classes
    return reduced(loss if x.ndim == 2 else loss[0], reduction)
