"""Update rules that go by moments of the gradient: Adam and those after it."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from emulator.lowering.update_rules.parameters import (
    Keep,
    States,
    Update,
    lerp,
    update_each,
    update_rule,
    wide,
)
from pef_schema.program import OptimizerKind


@update_rule(OptimizerKind.ADAM, OptimizerKind.ADAMW)
def adam(update: Update) -> None:
    """Adam, and AdamW, whose weight decay is decoupled."""
    options, argins = update.options, update.argins
    beta1, beta2 = options["beta1"], options["beta2"]
    decoupled = update.optimizer.kind is OptimizerKind.ADAMW
    t = update.count_step()
    step_size = argins["lr"] / (1.0 - beta1**t)
    correction = jnp.sqrt(1.0 - beta2**t)

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        step_size, correction, lr, decay = scalars
        first, second = (wide(a) for a in states[:2])
        dtype = weight.dtype
        if decoupled:
            weight = weight * (1.0 - lr * decay).astype(dtype)
        else:
            grad = grad + decay.astype(dtype) * weight
        first = first + (1.0 - beta1) * (grad - first)
        second = beta2 * second + (1.0 - beta2) * (grad * grad)
        new = [keep(first, states[0]), keep(second, states[1])]
        first, largest = (wide(a) for a in new)
        if options["amsgrad"]:
            new.append(keep(jnp.maximum(wide(states[2]), largest), states[2]))
            largest = wide(new[2])
        denominator = jnp.sqrt(largest) / correction.astype(dtype) + options["eps"]
        weight = weight - step_size.astype(dtype) * (first / denominator)
        return weight, *new

    scalars = [step_size, correction, argins["lr"], argins["weight_decay"]]
    update_each(update, one, scalars)


@update_rule(OptimizerKind.QADAM)
def qadam(update: Update) -> None:
    """QAdam: Adam that stops updating its moments at ``warmup_steps``; the host may write them."""
    options, argins = update.options, update.argins
    beta1, beta2, warmup = options["beta1"], options["beta2"], options["warmup_steps"]
    t = update.count_step()
    warm = t < warmup
    step_size = argins["lr"] / (1.0 - beta1**t)
    correction = jnp.sqrt(1.0 - beta2**t)

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        warm, step_size, correction, decay = scalars
        first, second = (wide(a) for a in states)
        dtype = weight.dtype
        grad = grad + decay.astype(dtype) * weight
        # After the warm-up the host has written the averaged moment before this runs.
        first = jnp.where(warm, first + (1.0 - beta1) * (grad - first), first)
        second = jnp.where(warm, beta2 * second + (1.0 - beta2) * (grad * grad), second)
        new = [keep(first, states[0]), keep(second, states[1])]
        first, second = (wide(a) for a in new)
        denominator = jnp.sqrt(second) / correction.astype(dtype) + options["eps"]
        weight = weight - step_size.astype(dtype) * (first / denominator)
        return weight, *new

    scalars = [warm, step_size, correction, argins["weight_decay"]]
    update_each(update, one, scalars)


@update_rule(OptimizerKind.ADAMAX)
def adamax(update: Update) -> None:
    """Adamax: Adam by the infinity norm of the gradients."""
    options, argins = update.options, update.argins
    beta1, beta2 = options["beta1"], options["beta2"]
    t = update.count_step()
    step_size = argins["lr"] / (1.0 - beta1**t)

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        step_size, decay = (a.astype(weight.dtype) for a in scalars)
        mean, norm = (wide(a) for a in states)
        grad = grad + decay * weight
        new = [
            keep(lerp(mean, grad, 1.0 - beta1), states[0]),
            keep(jnp.maximum(norm * beta2, jnp.abs(grad) + options["eps"]), states[1]),
        ]
        mean, norm = (wide(a) for a in new)
        return weight - step_size * mean / norm, *new

    update_each(update, one, [step_size, argins["weight_decay"]])


@update_rule(OptimizerKind.NADAM)
def nadam(update: Update) -> None:
    """NAdam: Adam with Nesterov's momentum, whose schedule is a product that each weight keeps."""
    options, argins = update.options, update.argins
    beta1, beta2, falling = options["beta1"], options["beta2"], options["momentum_decay"]
    t = update.count_step()
    correction = 1.0 - beta2**t
    now = beta1 * (1.0 - 0.5 * 0.96 ** (t * falling))
    following = beta1 * (1.0 - 0.5 * 0.96 ** ((t + 1.0) * falling))

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        now, following, correction, lr, decay = scalars
        mean, square = (wide(a) for a in states[:2])
        last, dtype = states[2], weight.dtype
        weight, grad = _decay(weight, grad, lr, decay, options)
        product = keep(last * now.astype(last.dtype), last)
        new = [
            keep(lerp(mean, grad, 1.0 - beta1), states[0]),
            keep(beta2 * square + (1.0 - beta2) * grad * grad, states[1]),
        ]
        mean, square = (wide(a) for a in new)
        denominator = jnp.sqrt(square / correction.astype(dtype)) + options["eps"]
        exact = product.astype(jnp.float64)
        of_grad = lr * (1.0 - now) / (1.0 - exact)
        of_mean = lr * following / (1.0 - exact * following)
        weight = weight - of_grad.astype(dtype) * grad / denominator
        weight = weight - of_mean.astype(dtype) * mean / denominator
        return weight, *new, product

    scalars = [now, following, correction, argins["lr"], argins["weight_decay"]]
    update_each(update, one, scalars)


@update_rule(OptimizerKind.RADAM)
def radam(update: Update) -> None:
    """RAdam: Adam whose first steps, while the variance is unknown, go by the mean alone."""
    options, argins = update.options, update.argins
    beta1, beta2 = options["beta1"], options["beta2"]
    t = update.count_step()
    correction = 1.0 - beta2**t
    most = 2.0 / (1.0 - beta2) - 1.0
    length = most - 2.0 * t * beta2**t / correction
    rectified = length > 5.0
    # Not computed where it does not count: it would be a root of what is below 0.
    counted = jnp.where(rectified, length, 6.0)
    ratio = (counted - 4.0) * (counted - 2.0) * most / ((most - 4.0) * (most - 2.0) * counted)
    rectification = jnp.sqrt(jnp.where(rectified, ratio, 1.0))

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        rectified, rectification, bias, root, lr, decay = scalars
        mean, square = (wide(a) for a in states)
        dtype = weight.dtype
        weight, grad = _decay(weight, grad, lr, decay, options)
        new = [
            keep(lerp(mean, grad, 1.0 - beta1), states[0]),
            keep(beta2 * square + (1.0 - beta2) * grad * grad, states[1]),
        ]
        mean, square = (wide(a) for a in new)
        plain = mean / bias.astype(dtype) * lr.astype(dtype)
        adaptive = root.astype(dtype) / (jnp.sqrt(square) + options["eps"])
        change = jnp.where(rectified, plain * adaptive * rectification.astype(dtype), plain)
        return weight - change, *new

    scalars = [rectified, rectification, 1.0 - beta1**t, jnp.sqrt(correction)]
    scalars += [argins["lr"], argins["weight_decay"]]
    update_each(update, one, scalars)


def _decay(
    weight: jax.Array,
    grad: jax.Array,
    lr: jax.Array,
    decay: jax.Array,
    options: Mapping[str, float],
) -> tuple[jax.Array, jax.Array]:
    """A weight and its gradient after weight decay, which is a part of one or of the other."""
    if options["decoupled_weight_decay"]:
        return weight * (1.0 - lr * decay).astype(weight.dtype), grad
    return weight, grad + decay.astype(weight.dtype) * weight
