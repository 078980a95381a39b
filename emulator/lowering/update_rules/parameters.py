"""What all update rules share: the arrays they take, their types, and how they are stored.

Scalars (learning rate, bias corrections) are computed in float64, as torch does
in Python. float32 and float64 tensors are updated in their own dtype; 16-bit ones
in float32, as torch's kernels compute inside, and rounded when they are stored. A weight goes by
its states as they are stored, as torch's does. XLA would else compute both from the old ones, so
that neither could be overwritten without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from emulator.kernels.narrowing import narrow
from emulator.kernels.unfused import compile_apart
from emulator.lowering.node_cache import call_once_traced
from emulator.lowering.section import State
from pef_schema.program import Optimizer


def update_each(
    optimizer: Optimizer,
    state: State,
    result: State,
    rule: Callable[..., tuple[jax.Array, ...]],
    scalars: Sequence[jax.Array],
    *,
    form: tuple[object, ...] = (),
    idle: Collection[int] = (),
) -> None:
    """Apply a rule to each parameter of an optimizer.

    Args:
        optimizer: The optimizer.
        state: Weights, gradients and states by region.
        result: Receives the new weights and states.
        rule: Takes a weight, its gradient, its states and the scalars; gives the new weight and
            states.
        scalars: Numbers that are the same for all parameters.
        form: What the rule depends on besides the optimizer's kind and options.
        idle: Regions of states that the rule does not take.
    """
    name = optimizer.kind.name.lower()
    by_parts = _by_parts(rule)
    for p in optimizer.params:
        regions = [r for r in p.states if r not in idle]
        arrays = [state[p.weight], state[p.grad], *(state[r] for r in regions), *scalars]
        key = (name, optimizer.options, *form)
        here = by_parts if jnp.iscomplexobj(state[p.weight]) else rule
        result[p.weight], *states = call_once_traced(key, here, arrays, name)
        result.update(zip(regions, states, strict=True))


def _by_parts(rule: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., tuple[jax.Array, ...]]:
    """A rule for complex arrays: torch's optimizers take their two parts for two parameters."""

    def parts(array: jax.Array) -> jax.Array:
        return jnp.stack([array.real, array.imag]) if jnp.iscomplexobj(array) else array

    def updated(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        shape = arrays[0].shape
        results = rule(*(parts(a) for a in arrays))
        # A state that is one number has no parts.
        return tuple(jax.lax.complex(y[0], y[1]) if y.shape == (2, *shape) else y for y in results)

    return updated


def scalars_of(optimizer: Optimizer, state: State) -> dict[str, jax.Array]:
    """The hyperparameters of an optimizer, float64, by name."""
    return {name: state[region] for name, region in optimizer.argins}


def count_step(optimizer: Optimizer, state: State, result: State) -> jax.Array:
    """Count a step of an optimizer; the number of the step that is made, from 1, in float64."""
    count = state[optimizer.step] + 1.0
    result[optimizer.step] = count
    return count.astype(jnp.float64)


def _same(array: jax.Array) -> jax.Array:
    return array


def stored(array: jax.Array, dtype: Any) -> jax.Array:
    """A state as it is stored; made once, while XLA would make it again for the weight."""
    if array.dtype == dtype:
        return array
    return compile_apart(_same, narrow(array, dtype))


def wide(array: jax.Array) -> jax.Array:
    """An array in the type that it is computed in."""
    return array.astype(jnp.float32) if array.dtype.itemsize == 2 else array


def lerp(start: jax.Array, end: jax.Array, weight: float) -> jax.Array:
    """``torch.lerp``, which counts from the nearer end."""
    if weight < 0.5:
        return start + weight * (end - start)
    return end - (end - start) * (1.0 - weight)
