"""Update rules that divide by a history of squared gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

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
from pef_schema.optimizer_states import idle_states
from pef_schema.program import OptimizerKind


@update_rule(OptimizerKind.RMSPROP)
def rmsprop(update: Update) -> None:
    """RMSprop, with and without its mean taken off and momentum."""
    options, argins = update.options, update.argins
    alpha = options["alpha"]
    update.count_step()

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        lr, momentum, decay = (a.astype(weight.dtype) for a in scalars)
        grad = grad + decay * weight
        square = alpha * wide(states[0]) + (1.0 - alpha) * grad * grad
        new = [keep(square, states[0])]
        square = wide(new[0])
        if options["centered"]:
            new.append(keep(lerp(wide(states[1]), grad, 1.0 - alpha), states[1]))
            mean = wide(new[1])
            square = square - mean * mean
        denominator = jnp.sqrt(square) + options["eps"]
        if update.no_momentum:
            return weight - lr * grad / denominator, *new
        new.append(keep(momentum * wide(states[-1]) + grad / denominator, states[-1]))
        return weight - lr * wide(new[-1]), *new

    scalars = [argins[k] for k in ("lr", "momentum", "weight_decay")]
    idle = idle_states(update.optimizer) if update.no_momentum else ()
    update_each(update, one, scalars, form=(update.no_momentum,), idle=idle)


@update_rule(OptimizerKind.ADAGRAD)
def adagrad(update: Update) -> None:
    """Adagrad: by the sum of all squares so far."""
    options, argins = update.options, update.argins
    t = update.count_step()
    step_size = argins["lr"] / (1.0 + (t - 1.0) * options["lr_decay"])

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        step_size, decay = (a.astype(weight.dtype) for a in scalars)
        grad = grad + decay * weight
        new = keep(wide(states[0]) + grad * grad, states[0])
        denominator = jnp.sqrt(wide(new)) + options["eps"]
        return weight - step_size * grad / denominator, new

    update_each(update, one, [step_size, argins["weight_decay"]])


@update_rule(OptimizerKind.ADADELTA)
def adadelta(update: Update) -> None:
    """Adadelta: by the ratio of past changes to past gradients."""
    options, argins = update.options, update.argins
    rho, eps = options["rho"], options["eps"]
    update.count_step()

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        lr, decay = (a.astype(weight.dtype) for a in scalars)
        square, changes = (wide(a) for a in states)
        grad = grad + decay * weight
        square = keep(rho * square + (1.0 - rho) * grad * grad, states[0])
        change = jnp.sqrt(changes + eps) / jnp.sqrt(wide(square) + eps) * grad
        changes = keep(rho * changes + (1.0 - rho) * change * change, states[1])
        return weight - lr * change, square, changes

    update_each(update, one, [argins["lr"], argins["weight_decay"]])
