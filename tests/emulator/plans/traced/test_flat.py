"""Plans without calls, each value computed once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from emulator.plans.traced import FlatPlan, Forms, flattened

X = np.arange(24.0, dtype=np.float32).reshape(1, 2, 3, 4)


def flat(function: Any) -> FlatPlan:
    return flattened(jax.make_jaxpr(function)(X).jaxpr, Forms(), whole=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.permutations(range(4)), max_size=4))
def test_transposes_of_transposes_are_one_or_none(orders: list[list[int]]) -> None:
    def turn(x: jax.Array) -> jax.Array:
        for order in orders:
            x = jnp.transpose(x, order)
        return x * 2.0

    traced: Any = jax.make_jaxpr(turn)(X)
    found = flat(turn)
    names = [eqn.primitive.name for eqn in found.eqns]
    (y,) = jaxpr_as_fun(
        ClosedJaxpr(traced.jaxpr.replace(eqns=found.eqns, outvars=found.results), ())
    )(X)
    moves = X.transpose(*orders[0]) if orders else X
    for order in orders[1:]:
        moves = moves.transpose(*order)
    assert names in (["mul"], ["transpose", "mul"])
    np.testing.assert_array_equal(y, moves * 2.0)


def test_a_value_between_two_transposes_is_kept_for_its_other_readers() -> None:
    def turn(x: jax.Array) -> Any:
        h = jnp.transpose(x, (0, 2, 3, 1))
        return jnp.sin(h), jnp.transpose(h, (0, 3, 1, 2)) + x

    names = [eqn.primitive.name for eqn in flat(turn).eqns]
    assert names == ["transpose", "sin", "add"]
