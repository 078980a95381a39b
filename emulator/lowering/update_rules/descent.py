"""The update rule of stochastic gradient descent."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.lowering.update_rules.parameters import (
    Keep,
    States,
    Update,
    update_each,
    update_rule,
    wide,
)
from pef_schema.optimizer_states import idle_states
from pef_schema.program import OptimizerKind


@update_rule(OptimizerKind.SGD)
def sgd(update: Update) -> None:
    """Descent with momentum, dampening, Nesterov's step and weight decay."""
    options, argins, optimizer = update.options, update.argins, update.optimizer
    no_momentum = update.no_momentum
    scalars = [argins[k] for k in ("lr", "momentum", "weight_decay")]
    counted = optimizer.step >= 0 and not no_momentum
    if counted:
        scalars.append(update.state[optimizer.step] == 0)
        update.count_step()

    def one(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: jax.Array
    ) -> tuple[jax.Array, ...]:
        lr, momentum, decay = (a.astype(weight.dtype) for a in scalars[:3])
        grad = grad + decay * weight
        if no_momentum:
            return (weight - lr * grad,)
        buffer = momentum * wide(states[0]) + (1.0 - options["dampening"]) * grad
        if counted:
            # torch starts the buffer with the bare gradient: no dampening on the first step.
            buffer = jnp.where(scalars[3], grad, buffer)
        new = keep(buffer, states[0])
        buffer = wide(new)
        grad = grad + momentum * buffer if options["nesterov"] else buffer
        return weight - lr * grad, new

    idle = idle_states(optimizer) if no_momentum else ()
    update_each(update, one, scalars, form=(no_momentum, counted), idle=idle)
