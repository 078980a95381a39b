"""What all update rules share: the arrays they take, their types, and how they are stored.

Scalars (learning rate, bias corrections) are computed in float64, as torch does
in Python. float32 and float64 tensors are updated in their own dtype; 16-bit ones
in float32, as torch's kernels compute inside, and rounded when they are stored. A weight goes by
its states as they are stored, as torch's does. XLA would else compute both from the old ones, so
that neither could be overwritten without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from emulator.kernels.precision import narrow
from emulator.kernels.unfused import in_memory
from emulator.lowering.branch_checks import held
from emulator.lowering.node_cache import call_once_traced
from emulator.lowering.section import State
from pef_schema.program import Optimizer, OptimizerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update of an optimizer's parameters.

    Args:
        optimizer: The optimizer.
        state: Weights, gradients, states, step counts and hyperparameters by region.
        failed: Whether a branch of ``forward`` went the other way, so that weights and states
            stay as they are; None where no branch is checked.
        no_momentum: Whether its momentum is 0, so that no buffer is kept for it.
        result: Receives the new weights, states and step count.
    """

    optimizer: Optimizer
    state: State
    failed: jax.Array | None
    no_momentum: bool
    result: State

    @property
    def options(self) -> Mapping[str, float]:
        """The optimizer's options by name."""
        return dict(self.optimizer.options)

    @property
    def argins(self) -> dict[str, jax.Array]:
        """Its hyperparameters by name, float64."""
        return {name: self.state[region] for name, region in self.optimizer.argins}

    def count_step(self) -> jax.Array:
        """Count a step; the number of the step that is made, from 1, in float64."""
        region = self.optimizer.step
        count = self.state[region] + 1.0
        self.result[region] = held(self.failed, self.state[region], count)
        return count.astype(jnp.float64)


UpdateRule = Callable[[Update], None]
RULES: dict[OptimizerKind, UpdateRule] = {}
"""Update rules by the kind of optimizer; :func:`update_rule` adds them."""


def update_rule(*kinds: OptimizerKind) -> Callable[[UpdateRule], UpdateRule]:
    """Make a function the update rule of optimizers.

    Args:
        kinds: The kinds of optimizers whose rule it is.

    Returns:
        A decorator that returns the function unchanged.
    """

    def register(rule: UpdateRule) -> UpdateRule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


Keep = Callable[[jax.Array, jax.Array], jax.Array]
"""Takes a new state and the old one; gives the new one as it is stored."""

States = Sequence[jax.Array]
"""States of a weight as they are stored."""

Rule = Callable[..., tuple[jax.Array, ...]]
"""Takes how states are kept; a weight and the gradient that it goes down, both in the type that is
computed in; the weight's states as they are kept; and the scalars. Gives the new weight in the type
that it is computed in, and the states as they are kept."""


def update_each(
    update: Update,
    rule: Rule,
    scalars: Sequence[jax.Array],
    *,
    form: tuple[object, ...] = (),
    idle: Collection[int] = (),
) -> None:
    """Apply a rule to each parameter of an optimizer.

    Args:
        update: The update.
        rule: The rule of one parameter.
        scalars: Numbers that are the same for all parameters.
        form: What the rule depends on besides the optimizer's kind and options.
        idle: Regions of states that the rule does not take.
    """
    optimizer, state = update.optimizer, update.state
    flags = [] if update.failed is None else [update.failed]
    name = optimizer.kind.name.lower()
    down = not update.options.get("maximize")
    by_parts = _by_parts(rule)
    for p in optimizer.params:
        regions = [r for r in p.states if r not in idle]
        arrays = [state[p.weight], state[p.grad], *(state[r] for r in regions), *scalars, *flags]
        has_parts = bool(jnp.iscomplexobj(state[p.weight]))
        key = (name, optimizer.options, len(flags), has_parts, *form)
        here = by_parts if has_parts else rule
        one = partial(_update_weight, here, down, len(regions), len(flags))
        update.result[p.weight], *states = call_once_traced(key, one, arrays, name)
        update.result.update(zip(regions, states, strict=True))


def _update_weight(
    rule: Rule, down: bool, states: int, flags: int, old: jax.Array, grad: jax.Array, *rest: Any
) -> tuple[jax.Array, ...]:
    """A weight and its states after an update.

    A weight goes by states that stay as they are where the last of the arrays says so. XLA would
    else make them a second time for the weight, and copy what it could have overwritten.
    """
    failed = rest[-1] if flags else None

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return held(failed, old, stored(new, old.dtype))

    grad = wide(grad)
    scalars = rest[states : len(rest) - flags]
    weight, *new = rule(keep, wide(old), grad if down else -grad, rest[:states], *scalars)
    return held(failed, old, narrow(weight, old.dtype)), *new


def _by_parts(rule: Rule) -> Rule:
    """A rule for complex arrays: torch's optimizers take their two parts for two parameters."""

    def parts(array: jax.Array) -> jax.Array:
        return jnp.stack([array.real, array.imag]) if jnp.iscomplexobj(array) else array

    def updated(
        keep: Keep, weight: jax.Array, grad: jax.Array, states: States, *scalars: Any
    ) -> tuple[jax.Array, ...]:
        results = rule(keep, parts(weight), parts(grad), [parts(s) for s in states], *scalars)
        # A state that is one number has no parts.
        whole = (2, *weight.shape)
        return tuple(jax.lax.complex(y[0], y[1]) if y.shape == whole else y for y in results)

    return updated


def stored(array: jax.Array, dtype: Any) -> jax.Array:
    """A state as it is stored; made once, while XLA would make it again for the weight."""
    if array.dtype == dtype:
        return array
    return in_memory(narrow(array, dtype))


def wide(array: jax.Array) -> jax.Array:
    """An array in the type that it is computed in."""
    return array.astype(jnp.float32) if array.dtype.itemsize == 2 else array


def lerp(start: jax.Array, end: jax.Array, weight: float) -> jax.Array:
    """``torch.lerp``, which counts from the nearer end."""
    if weight < 0.5:
        return start + weight * (end - start)
    return end - (end - start) * (1.0 - weight)
