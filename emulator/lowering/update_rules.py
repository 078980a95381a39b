"""Update rules of the optimizers, with torch's arithmetic in torch's order.

Each rule mirrors the single-tensor path of the torch optimizer of the same name; qadam's mirrors
``samba.distributed.bagua.QAdamOptimizer``.
Scalars (learning rate, bias corrections) are computed in float64, as torch does
in Python. float32 and float64 tensors are updated in their own dtype; 16-bit ones
in float32, as torch's kernels compute inside, and rounded when they are stored. A weight goes by
its states as they are stored, as torch's does. XLA would else compute both from the old ones, so
that neither could be overwritten without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.kernels.narrowing import narrow
from emulator.kernels.unfused import compile_apart
from emulator.lowering.node_cache import call_once_traced
from emulator.lowering.section import State, Variant
from emulator.ops._reduction import reduce_all
from pef_schema.program import Optimizer, OptimizerKind, Program, Step


def update(program: Program, step: Step, state: State, variant: Variant) -> State:
    """Execute an OPT step.

    Args:
        program: The program.
        step: The step. Of its optimizers it updates the weights that it writes, and counts a
            step where it writes the count; several steps may share an optimizer.
        state: Weights, gradients, optimizer states, step counts and argins.
        variant: Which SGD optimizers keep no momentum.

    Returns:
        Updated weights, states and step counts.
    """
    result: State = {}
    writes = set(step.writes)
    for index in step.optimizers:
        optimizer = program.optimizers[index]
        here = tuple(p for p in optimizer.params if p.weight in writes)
        if len(here) < len(optimizer.params):
            optimizer = replace(optimizer, params=here)
        with jax.named_scope(optimizer.name):
            _RULES[optimizer.kind](optimizer, state, result, index in variant.no_momentum)
        if optimizer.step not in writes:
            result.pop(optimizer.step, None)
    return result


def gradnorm(program: Program, step: Step, state: State) -> State:
    """Execute a GRADNORM step: scale gradients so that their 2-norm is at most ``step.max_norm``.

    The formula is ``torch.nn.utils.clip_grad_norm_``'s:
    ``grad * min(1, max_norm / (norm + 1e-6))``. float64 gradients have a float64 norm.
    """
    grads = step.reads
    norm = jnp.sqrt(sum(reduce_all(jnp.square(_wide(state[r]))) for r in grads))
    scale = jnp.minimum(step.max_norm / (norm + 1e-6), 1.0)
    result: State = {r: state[r] * scale.astype(state[r].dtype) for r in grads}
    for region in step.writes:
        if region not in result:
            result[region] = norm.astype(TO_NUMPY[program.regions[region].dtype])
    return result


def zerograd(program: Program, step: Step) -> State:
    """Execute a ZEROGRAD step."""
    result: State = {}
    for r in step.writes:
        region = program.regions[r]
        result[r] = jnp.zeros(region.shape, TO_NUMPY[region.dtype])  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
    return result


def _scalars(optimizer: Optimizer, state: State) -> dict[str, jax.Array]:
    return {name: state[region] for name, region in optimizer.argins}


def _same(array: jax.Array) -> jax.Array:
    return array


def _stored(array: jax.Array, dtype: Any) -> jax.Array:
    """A state as it is stored; made once, while XLA would make it again for the weight."""
    if array.dtype == dtype:
        return array
    return compile_apart(_same, narrow(array, dtype))


def _wide(array: jax.Array) -> jax.Array:
    return array.astype(jnp.float32) if array.dtype.itemsize == 2 else array


def _sgd(optimizer: Optimizer, state: State, result: State, no_momentum: bool) -> None:
    options: Mapping[str, float] = dict(optimizer.options)
    argins = _scalars(optimizer, state)
    first = None
    if optimizer.step >= 0 and not no_momentum:
        first = state[optimizer.step] == 0
        result[optimizer.step] = state[optimizer.step] + 1.0

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, rate, inertia, shrink, *kept = arrays
        weight, grad = _wide(old), _wide(gradient)
        lr, momentum, decay = (a.astype(weight.dtype) for a in (rate, inertia, shrink))
        if options["maximize"]:
            grad = -grad
        grad = grad + decay * weight
        states: list[jax.Array] = []
        if not no_momentum:
            buffer = momentum * _wide(kept[0]) + (1.0 - options["dampening"]) * grad
            if first is not None:
                # torch starts the buffer with the bare gradient: no dampening on the first step.
                buffer = jnp.where(kept[1], grad, buffer)
            states.append(_stored(buffer, old.dtype))
            buffer = _wide(states[0])
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


def _adam(optimizer: Optimizer, state: State, result: State, decoupled: bool) -> None:
    options: Mapping[str, float] = dict(optimizer.options)
    argins = _scalars(optimizer, state)
    beta1, beta2 = options["beta1"], options["beta2"]
    count = state[optimizer.step] + 1.0
    result[optimizer.step] = count
    t = count.astype(jnp.float64)
    step_size = argins["lr"] / (1.0 - beta1**t)
    correction = jnp.sqrt(1.0 - beta2**t)

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, *states, step_size, correction, lr, decay = arrays
        weight, grad, first, second = (_wide(a) for a in (old, gradient, *states[:2]))
        dtype = weight.dtype
        if options["maximize"]:
            grad = -grad
        if decoupled:
            weight = weight * (1.0 - lr * decay).astype(dtype)
        else:
            grad = grad + decay.astype(dtype) * weight
        first = first + (1.0 - beta1) * (grad - first)
        second = beta2 * second + (1.0 - beta2) * (grad * grad)
        new = [_stored(first, old.dtype), _stored(second, old.dtype)]
        first, largest = (_wide(a) for a in new)
        if options["amsgrad"]:
            new.append(_stored(jnp.maximum(_wide(states[2]), largest), old.dtype))
            largest = _wide(new[2])
        denominator = jnp.sqrt(largest) / correction.astype(dtype) + options["eps"]
        weight = weight - step_size.astype(dtype) * (first / denominator)
        return narrow(weight, old.dtype), *new

    scalars = [step_size, correction, argins["lr"], argins["weight_decay"]]
    key = ("adam", decoupled, optimizer.options)
    for p in optimizer.params:
        arrays = [state[p.weight], state[p.grad], *(state[r] for r in p.states), *scalars]
        result[p.weight], *states = call_once_traced(key, one, arrays, "adam")
        result.update(zip(p.states, states, strict=True))


def _qadam(optimizer: Optimizer, state: State, result: State) -> None:
    options: Mapping[str, float] = dict(optimizer.options)
    argins = _scalars(optimizer, state)
    beta1, beta2, warmup = options["beta1"], options["beta2"], options["warmup_steps"]
    count = state[optimizer.step] + 1.0
    result[optimizer.step] = count
    t = count.astype(jnp.float64)
    warm = t <= warmup
    step_size = argins["lr"] / (1.0 - beta1**t)
    correction = jnp.sqrt(1.0 - beta2 ** jnp.minimum(t, warmup))

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        old, gradient, mean, square, warm, step_size, correction, decay = arrays
        weight, grad, first, second = (_wide(a) for a in (old, gradient, mean, square))
        dtype = weight.dtype
        grad = grad + decay.astype(dtype) * weight
        # After the warm-up the host has written the averaged moment before this runs.
        first = jnp.where(warm, first + (1.0 - beta1) * (grad - first), first)
        second = jnp.where(warm, beta2 * second + (1.0 - beta2) * (grad * grad), second)
        new = [_stored(first, old.dtype), _stored(second, old.dtype)]
        first, second = (_wide(a) for a in new)
        denominator = jnp.sqrt(second) / correction.astype(dtype) + options["eps"]
        weight = weight - step_size.astype(dtype) * (first / denominator)
        return narrow(weight, old.dtype), *new

    scalars = [warm, step_size, correction, argins["weight_decay"]]
    key = ("qadam", optimizer.options)
    for p in optimizer.params:
        arrays = [state[p.weight], state[p.grad], *(state[r] for r in p.states), *scalars]
        result[p.weight], *states = call_once_traced(key, one, arrays, "qadam")
        result.update(zip(p.states, states, strict=True))


_Rule = Callable[[Optimizer, State, State, bool], None]
_RULES: dict[OptimizerKind, _Rule] = {
    OptimizerKind.SGD: _sgd,
    OptimizerKind.ADAM: lambda o, s, r, _: _adam(o, s, r, False),
    OptimizerKind.ADAMW: lambda o, s, r, _: _adam(o, s, r, True),
    OptimizerKind.QADAM: lambda o, s, r, _: _qadam(o, s, r),
}
