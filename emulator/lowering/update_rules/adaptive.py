"""Update rules that divide by a history of squared gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from emulator.kernels.narrowing import narrow
from emulator.lowering.section import State
from emulator.lowering.update_rules.parameters import (
    count_step,
    lerp,
    scalars_of,
    stored,
    update_each,
    wide,
)
from pef_schema.optimizer_rules import idle_states
from pef_schema.program import Optimizer


def rmsprop(optimizer: Optimizer, state: State, result: State, no_momentum: bool) -> None:
    """RMSprop, with and without its mean taken off and momentum."""
    options: Mapping[str, float] = dict(optimizer.options)
    argins = scalars_of(optimizer, state)
    alpha = options["alpha"]
    count_step(optimizer, state, result)

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, *states, rate, inertia, shrink = arrays
        weight, grad = wide(old), wide(gradient)
        lr, momentum, decay = (a.astype(weight.dtype) for a in (rate, inertia, shrink))
        if options["maximize"]:
            grad = -grad
        grad = grad + decay * weight
        square = alpha * wide(states[0]) + (1.0 - alpha) * grad * grad
        new = [stored(square, old.dtype)]
        square = wide(new[0])
        if options["centered"]:
            new.append(stored(lerp(wide(states[1]), grad, 1.0 - alpha), old.dtype))
            mean = wide(new[1])
            square = square - mean * mean
        denominator = jnp.sqrt(square) + options["eps"]
        if no_momentum:
            return narrow(weight - lr * grad / denominator, old.dtype), *new
        new.append(stored(momentum * wide(states[-1]) + grad / denominator, old.dtype))
        return narrow(weight - lr * wide(new[-1]), old.dtype), *new

    scalars = [argins[k] for k in ("lr", "momentum", "weight_decay")]
    idle = idle_states(optimizer) if no_momentum else ()
    update_each(optimizer, state, result, one, scalars, form=(no_momentum,), idle=idle)


def adagrad(optimizer: Optimizer, state: State, result: State) -> None:
    """Adagrad: by the sum of all squares so far."""
    options: Mapping[str, float] = dict(optimizer.options)
    argins = scalars_of(optimizer, state)
    t = count_step(optimizer, state, result)
    step_size = argins["lr"] / (1.0 + (t - 1.0) * options["lr_decay"])

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, total, step_size, decay = arrays
        weight, grad, total = (wide(a) for a in (old, gradient, total))
        dtype = weight.dtype
        if options["maximize"]:
            grad = -grad
        grad = grad + decay.astype(dtype) * weight
        new = stored(total + grad * grad, old.dtype)
        denominator = jnp.sqrt(wide(new)) + options["eps"]
        return narrow(weight - step_size.astype(dtype) * grad / denominator, old.dtype), new

    update_each(optimizer, state, result, one, [step_size, argins["weight_decay"]])


def adadelta(optimizer: Optimizer, state: State, result: State) -> None:
    """Adadelta: by the ratio of past changes to past gradients."""
    options: Mapping[str, float] = dict(optimizer.options)
    argins = scalars_of(optimizer, state)
    rho, eps = options["rho"], options["eps"]
    count_step(optimizer, state, result)

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, square, changes, lr, decay = arrays
        weight, grad, square, changes = (wide(a) for a in (old, gradient, square, changes))
        dtype = weight.dtype
        if options["maximize"]:
            grad = -grad
        grad = grad + decay.astype(dtype) * weight
        square = stored(rho * square + (1.0 - rho) * grad * grad, old.dtype)
        change = jnp.sqrt(changes + eps) / jnp.sqrt(wide(square) + eps) * grad
        changes = stored(rho * changes + (1.0 - rho) * change * change, old.dtype)
        return narrow(weight - lr.astype(dtype) * change, old.dtype), square, changes

    update_each(optimizer, state, result, one, [argins["lr"], argins["weight_decay"]])
