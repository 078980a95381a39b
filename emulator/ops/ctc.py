"""Lowerings: connectionist temporal classification.

Graves et al., "Connectionist Temporal Classification", 2006. A target is spread over time with
blanks between its labels; the loss is minus the logarithm of the probability of all ways to do so.
As in torch, the gradient takes ``log_probs`` to come from a log softmax.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import widen
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import reduce_all
from emulator.ops._reshape import merged
from emulator.ops.registry import op


def _log_sum(*terms: jax.Array) -> jax.Array:
    """``log(sum(exp(terms)))`` elementwise; ``-inf`` if all are."""
    return functools.reduce(jnp.logaddexp, terms)


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """Rows moved right by some places (left if negative), filled with ``-inf``."""
    pad = [(0, 0)] * (x.ndim - 1)
    if by > 0:
        return jnp.pad(x, [*pad, (by, 0)], constant_values=-jnp.inf)[..., : x.shape[-1]]
    return jnp.pad(x, [*pad, (0, -by)], constant_values=-jnp.inf)[..., -by:]


def _spread(targets: jax.Array, lengths: jax.Array, longest: int, blank: int) -> jax.Array:
    """Targets with blanks between, before and after: ``(N, 2 * longest + 1)``."""
    if targets.ndim == 1:  # all targets one after another
        place = (jnp.cumsum(lengths) - lengths)[:, None] + np.arange(longest)
        targets = targets[jnp.clip(place, 0, max(targets.shape[0] - 1, 0))]
    inside = np.arange(longest) < lengths[:, None]
    labels = jnp.where(inside, targets[:, :longest], blank).astype(np.int32)
    blanks = jnp.full_like(labels, blank)
    between = merged(jnp.stack([blanks, labels], axis=-1), 1)
    return jnp.pad(between, [(0, 0), (0, 1)], constant_values=blank)


def _paths(
    log_probs: jax.Array, labels: jax.Array, steps: jax.Array, lengths: jax.Array, blank: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability of each state at each time, of all ways to it, and of all ways.

    Returns:
        ``(T, N, S)`` for the label of each state, ``(T, N, S)`` and ``(N,)``.
    """
    states = labels.shape[1]
    place = np.arange(states)
    known = place <= 2 * lengths[:, None]
    emit = jnp.take_along_axis(log_probs, labels[None], axis=2)
    jump = (labels != blank) & (labels != jnp.roll(labels, 2, axis=1)) & (place >= 2)

    def advance(before: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        t, now = item
        skip = jnp.where(jump, _shifted(before, 2), -jnp.inf)
        on = _log_sum(before, _shifted(before, 1), skip) + now
        start = jnp.where(place < 2, now, -jnp.inf)
        after = jnp.where(known, jnp.where(t == 0, start, on), -jnp.inf)
        after = jnp.where((t < steps)[:, None], after, before)
        return after, after

    times = lax.iota(np.int32, log_probs.shape[0])
    # With no time at all only the empty target is possible.
    first = jnp.where((place == 2 * lengths[:, None]) & (lengths == 0)[:, None], 0, -jnp.inf)
    first = first.astype(log_probs.dtype)
    last, alpha = lax.scan(advance, first, (times, emit))
    end = 2 * lengths[:, None]
    final = jnp.take_along_axis(last, end, axis=1)[:, 0]
    other = jnp.take_along_axis(last, jnp.maximum(end - 1, 0), axis=1)[:, 0]
    total = _log_sum(final, jnp.where(lengths > 0, other, -jnp.inf))
    return emit, alpha, jnp.where((steps == 0) & (lengths > 0), -jnp.inf, total)


def _onward(
    emit: jax.Array, labels: jax.Array, steps: jax.Array, lengths: jax.Array, blank: int
) -> jax.Array:
    """Log-probability of all ways from each state at each time to an end: ``(T, N, S)``."""
    states = labels.shape[1]
    place = np.arange(states)
    end = 2 * lengths[:, None]
    known = place <= end
    jump = (labels != blank) & (labels != jnp.roll(labels, -2, axis=1)) & (place < end - 1)

    def retreat(after: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        t, now = item
        skip = jnp.where(jump, _shifted(after, -2), -jnp.inf)
        on = _log_sum(after, _shifted(after, -1), skip) + now
        start = jnp.where((place == end) | (place == end - 1), now, -jnp.inf)
        last = (steps - 1)[:, None]
        before = jnp.where(t == last, start, jnp.where(t < last, on, -jnp.inf))
        before = jnp.where(known, before, -jnp.inf)
        return before, before

    first = jnp.full(labels.shape, -jnp.inf, emit.dtype)
    times = lax.iota(np.int32, emit.shape[0])
    return lax.scan(retreat, first, (times, emit), reverse=True)[1]


def _losses_forward(
    log_probs: jax.Array,
    labels: jax.Array,
    steps: jax.Array,
    lengths: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    emit, alpha, total = _paths(log_probs, labels, steps, lengths, blank)
    loss = -total
    shown = jnp.where(jnp.isinf(loss), 0, loss) if zero_infinity else loss
    return shown, (log_probs, labels, steps, lengths, emit, alpha, loss)


def _losses_backward(
    blank: int, zero_infinity: bool, saved: tuple[jax.Array, ...], g: jax.Array
) -> tuple[Any, ...]:
    log_probs, labels, steps, lengths, emit, alpha, loss = saved
    beta = _onward(emit, labels, steps, lengths, blank)
    inside = np.arange(labels.shape[1]) <= 2 * lengths[:, None]
    share = jnp.where(inside, jnp.exp(alpha + beta - emit + loss[:, None]), 0)
    rows = np.arange(labels.shape[0])[:, None]
    moved = jnp.zeros(log_probs.shape, share.dtype).at[:, rows, labels].add(share)
    slope = jnp.exp(log_probs) - moved
    missed = jnp.isinf(loss)[:, None]
    slope = jnp.where(missed, 0 if zero_infinity else jnp.nan, slope) * g[:, None]
    running = np.arange(log_probs.shape[0])[:, None, None] < steps[:, None]
    return jnp.where(running, slope, 0).astype(log_probs.dtype), None, None, None


@with_gradient(_losses_backward, forward=_losses_forward, static=(4, 5))
def _losses(
    log_probs: jax.Array,
    labels: jax.Array,
    steps: jax.Array,
    lengths: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    return _losses_forward(log_probs, labels, steps, lengths, blank, zero_infinity)[0]


@op("samba.ctc_loss.default", reads=(0, 1, 2, 3), counted=False, indices="ctc")
def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    longest: int,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> jax.Array:
    """Minus the log-probability of targets, however they are spread over time.

    Args:
        log_probs: ``(T, N, C)`` or ``(T, C)``.
        targets: ``(N, S)``, or all of them one after another.
        input_lengths: Times that count, per sample.
        target_lengths: Labels that count, per sample.
        longest: No target is longer.
        blank: The label that stands for none.
        reduction: ``"none"``, ``"mean"`` (of losses per label) or ``"sum"``.
        zero_infinity: Whether a target that no way leads to costs nothing.

    Returns:
        ``(N,)``, or a number.
    """
    batched = log_probs.ndim == 3
    wide = widen(log_probs if batched else log_probs[:, None])
    steps, lengths = input_lengths.reshape(-1), target_lengths.reshape(-1)
    if targets.ndim == 1 and not batched:
        targets = targets[None]
    labels = _spread(targets, lengths, longest, blank)
    losses = _losses(wide, labels, steps, lengths, blank, zero_infinity)
    if reduction == "mean":
        losses = reduce_all(losses / jnp.maximum(lengths, 1).astype(losses.dtype)) / losses.size
    elif reduction == "sum":
        losses = reduce_all(losses)
    elif not batched:
        losses = losses[0]
    return losses.astype(log_probs.dtype)
