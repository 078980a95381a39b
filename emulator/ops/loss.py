"""Lowerings of losses over class scores: cross entropy and negative log likelihood.

Labels may be uint8, int16, int32 or int64. An int16 label is read modulo 65536, so that
vocabularies above 32767 entries fit (SambaFlow passes such labels); a label equal to
``ignore_index`` before or after that is ignored. torch checks labels in eager mode; a
compiled graph cannot, so here a label outside ``[0, C)`` counts as ignored: no loss, no
gradient, no weight in the mean.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import compute_dtype, widen
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import large_part, peak_within, reduce_all, reduce_sum, sum_within
from emulator.ops._reshape import merged
from emulator.ops.registry import op

_CLASSES = 4096
"""Exponentials that are added in one loop; of torch, 16 share an accumulator of any length."""
NONE, MEAN, SUM = 0, 1, 2
"""ATen's numbers for ``reduction``."""


def reduced(loss: jax.Array, reduction: int) -> jax.Array:
    """Apply ``reduction`` to elementwise losses."""
    if reduction == NONE:
        return loss
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        loss = loss.astype(jnp.int64)  # torch's dtype of a sum of integers
    return reduce_all(loss) / loss.size if reduction == MEAN else reduce_all(loss)


def _labels(target: jax.Array, classes: int, ignore_index: int) -> tuple[jax.Array, jax.Array]:
    """Labels in ``[0, C)`` and whether each counts."""
    label = target.astype(jnp.int32) if target.dtype.itemsize < 4 else target
    ignored = label == ignore_index
    if target.dtype == jnp.int16:
        label = jnp.where(label < 0, label + 65536, label)
        ignored |= label == ignore_index
    valid = ~ignored & (label >= 0) & (label < classes)
    return jnp.where(valid, label, 0).astype(jnp.int32), valid


def _weights(
    weight: jax.Array | None, label: jax.Array, valid: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """The weight of each sample, 0 where it is ignored."""
    if weight is None:
        return valid.astype(dtype)
    return jnp.where(valid, lax.stop_gradient(widen(weight))[label], 0).astype(dtype)


def _pick(x: jax.Array, label: jax.Array) -> jax.Array:
    """``x[n, label[n], ...]`` for x ``(N, C, ...)`` and labels ``(N, ...)``."""
    return jnp.take_along_axis(x, label[:, None], axis=1)[:, 0]


def _folded(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scores as ``(N, C, P)`` and targets as ``(N, P)``."""
    if x.ndim == 1:
        return x[None, :, None], target.reshape(1, 1)
    return merged(x, 2), merged(target, 1)


def _rows(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scores as ``(rows, C)`` and targets as ``(rows,)``.

    What a convolution gives lies so, and what a script has turned for torch's order of axes: XLA
    drops both moves.
    """
    if x.ndim == 1:
        return x[None], target.reshape(1)
    return jnp.moveaxis(x, 1, -1).reshape(target.size, x.shape[1]), target.reshape(-1)


def _log_sum(x: jax.Array) -> jax.Array:
    top = peak_within(x, 1)
    return (jnp.log(sum_within(jnp.exp(x - top), 1, _CLASSES)) + top)[:, 0]


def _label_losses_forward(
    x: jax.Array, label: jax.Array, sample: jax.Array, weight: jax.Array, smoothing: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = widen(x)
    total = large_part(_log_sum, wide)
    loss = jnp.where(sample != 0, total - _pick(wide, label), 0) * sample
    if smoothing:
        # Every class gets smoothing / C of the target; ignored samples are cut by the caller.
        spread = total * reduce_all(weight) - jnp.einsum("rc,c->r", wide, weight)
        loss = (1 - smoothing) * loss + smoothing / x.shape[1] * spread
    return loss, (x, label, sample, weight, total)


def _label_losses_backward(
    smoothing: float, saved: tuple[jax.Array, ...], g: jax.Array
) -> tuple[jax.Array | None, ...]:
    x, label, sample, weight, total = saved
    classes = x.shape[1]
    p = jnp.exp(widen(x) - total[:, None])
    hit = lax.broadcasted_iota(jnp.int32, x.shape, 1) == label[:, None]
    scale = (g * sample * (1 - smoothing))[:, None]
    dx = (p - hit.astype(p.dtype)) * scale
    if smoothing:
        spread = p * reduce_all(weight) - weight
        dx = dx + spread * (g * (smoothing / classes))[:, None]
    return dx.astype(x.dtype), None, None, None


@with_gradient(_label_losses_backward, forward=_label_losses_forward, static=(4,))
def _label_losses(
    x: jax.Array, label: jax.Array, sample: jax.Array, weight: jax.Array, smoothing: float
) -> jax.Array:
    """Cross entropy of rows of scores ``(rows, C)``; keeps nothing as large for its gradient."""
    return _label_losses_forward(x, label, sample, weight, smoothing)[0]


def _probability_losses(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, smoothing: float
) -> jax.Array:
    """Cross entropy with class probabilities as targets; classes on axis 1, or 0 of a vector."""
    axis = 0 if x.ndim == 1 else 1
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[axis]
    log_p = jax.nn.log_softmax(x, axis=axis) * target
    if weight is not None:
        shape = [1] * x.ndim
        shape[axis] = -1
        log_p = log_p * lax.stop_gradient(weight).reshape(shape)
    return -reduce_sum(log_p, (axis,))


@op(
    "aten.cross_entropy_loss.default",
    reads=(0, 1, 2),
    flops=("input", 0, 5),
    fusing=Fusing.REDUCES,
    indices="labels",
    no_derivative=(2,),
)
def cross_entropy(
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> jax.Array:
    """Cross entropy of scores ``(N, C, ...)`` or ``(C,)`` with labels or class probabilities."""
    if jnp.issubdtype(target.dtype, jnp.floating):
        wide_weight = None if weight is None else widen(weight)
        loss = _probability_losses(widen(x), widen(target), wide_weight, label_smoothing)
        if reduction == MEAN:
            return (reduce_all(loss) / loss.size).astype(x.dtype)
        return reduced(loss, reduction).astype(x.dtype)
    scores, labels = _rows(x, target)
    classes = scores.shape[1]
    label, valid = _labels(labels, classes, ignore_index)
    dtype = compute_dtype(x.dtype)
    sample = _weights(weight, label, valid, dtype)
    per_class = jnp.ones(classes, dtype) if weight is None else widen(weight)
    loss = _label_losses(scores, label, sample, lax.stop_gradient(per_class), label_smoothing)
    if label_smoothing:
        loss = jnp.where(valid, loss, 0)
    if reduction == NONE:
        return loss.reshape(target.shape).astype(x.dtype)
    total = reduce_all(loss)
    return (total / reduce_all(sample) if reduction == MEAN else total).astype(x.dtype)


def _nll(
    log_p: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
) -> tuple[jax.Array, jax.Array]:
    scores, labels = _folded(widen(log_p), target)
    label, valid = _labels(labels, scores.shape[1], ignore_index)
    sample = _weights(weight, label, valid, scores.dtype)
    loss = -jnp.where(valid, _pick(scores, label), 0) * sample
    if reduction == NONE:
        empty = jnp.zeros((), log_p.dtype)
        return loss.reshape(target.shape).astype(log_p.dtype), empty
    count = lax.stop_gradient(reduce_all(sample))
    total = reduce_all(loss)
    total = total / count if reduction == MEAN else total
    return total.astype(log_p.dtype), count.astype(log_p.dtype)


@op(
    *("aten.nll_loss_nd.default", "aten.nll_loss.default", "aten.nll_loss2d.default"),
    reads=(1, 2),
    flops=("input", 1, 2),
    fusing=Fusing.REDUCES,
    indices="labels",
    no_derivative=(2,),
)
def nll_loss(
    log_p: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> jax.Array:
    """Negative log likelihood of labels under log-probabilities ``(N, C, ...)`` or ``(C,)``."""
    return _nll(log_p, target, weight, reduction, ignore_index)[0]


@op(
    *("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"),
    reads=(1, 2),
    flops=("input", 1, 2),
    fusing=Fusing.REDUCES,
    indices="labels",
    no_derivative=(2,),
)
def nll_loss_forward(
    log_p: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
) -> tuple[jax.Array, jax.Array]:
    """Negative log likelihood and the total weight of the samples that count."""
    return _nll(log_p, target, weight, reduction, ignore_index)
