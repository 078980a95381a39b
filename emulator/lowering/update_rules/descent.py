"""The update rule of stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from emulator.kernels.narrowing import narrow
from emulator.lowering.node_cache import call_once_traced
from emulator.lowering.section import State
from emulator.lowering.update_rules.parameters import scalars_of, stored, wide
from pef_schema.program import Optimizer


def sgd(optimizer: Optimizer, state: State, result: State, no_momentum: bool) -> None:
    """Descent with momentum, dampening, Nesterov's step and weight decay."""
    options: Mapping[str, float] = dict(optimizer.options)
    argins = scalars_of(optimizer, state)
    first = None
    if optimizer.step >= 0 and not no_momentum:
        first = state[optimizer.step] == 0
        result[optimizer.step] = state[optimizer.step] + 1.0

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, rate, inertia, shrink, *kept = arrays
        weight, grad = wide(old), wide(gradient)
        lr, momentum, decay = (a.astype(weight.dtype) for a in (rate, inertia, shrink))
        if options["maximize"]:
            grad = -grad
        grad = grad + decay * weight
        states: list[jax.Array] = []
        if not no_momentum:
            buffer = momentum * wide(kept[0]) + (1.0 - options["dampening"]) * grad
            if first is not None:
                # torch starts the buffer with the bare gradient: no dampening on the first step.
                buffer = jnp.where(kept[1], grad, buffer)
            states.append(stored(buffer, old.dtype))
            buffer = wide(states[0])
            grad = grad + momentum * buffer if options["nesterov"] else buffer
        return narrow(weight - lr * grad, old.dtype), *states

    scalars = [argins[k] for k in ("lr", "momentum", "weight_decay")]
    for p in optimizer.params:
        arrays = [state[p.weight], state[p.grad], *scalars]
        if not no_momentum:
            arrays.append(state[p.states[0]])
            arrays += [] if first is None else [first]
        key = ("sgd", optimizer.options, no_momentum, first is None)
        result[p.weight], *states = call_once_traced(key, one, arrays, "sgd")
        result.update(zip(p.states, states, strict=False))
