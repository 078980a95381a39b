"""XLA makes of each model no more than it was given, and no value more than twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from bench import counts, fusion
from bench.fusion import Computed, computed
from bench.models import SMALL
from emulator.plans import fusion as planning
from emulator.plans.executable_cache import compiled_or_kept
from emulator.plans.fusion import trace_planned
from emulator.plans.xla_options import xla_options

pytestmark = pytest.mark.usefixtures("fusion_emitters", "quick_llvm")

FAST = ("res_ffn", "steps")
"""The rest takes longer to compile."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in counts.COUNTED],
)
def test_nothing_is_computed_anew(name):
    assert counts.check_fused([name]) == []


def test_kept_counts_are_within_the_limits():
    for name, kept in counts.kept_counts(part=counts.FUSED).items():
        found = fusion.Fused(**kept, which="")
        assert found.ratio <= fusion.LIMIT and found.most <= fusion.MOST, name


def test_values_that_are_computed_anew_are_seen(monkeypatch: pytest.MonkeyPatch):
    """As XLA fuses by itself: each reader of a value makes it again."""
    monkeypatch.setattr(planning, "made_in_memory", lambda flat: set())
    found = counts.check_fused(["steps"])
    assert len(found) == 2 and all(line.startswith("steps: fusion: ") for line in found)


def test_a_planted_duplicate_is_seen():
    """Three slow readers of one cosine, each in a kernel of its own."""

    def readers(x: jax.Array) -> tuple[jax.Array, ...]:
        shared = jnp.cos(x) * 2.0
        return tuple(jnp.tanh(shared + n).sum(axis=0) for n in range(3))

    x = jnp.ones((64, 64))
    traced = jax.jit(lambda x: readers(x)).trace(x)
    cpu = jax.devices("cpu")[0]

    def most(lowered: Any) -> int:
        compiled = compiled_or_kept(lowered, xla_options(cpu)).compiled
        return computed(compiled.as_text()).most

    assert most(trace_planned(traced.jaxpr, 0, SingleDeviceSharding(cpu)).lower()) == 1
    assert most(traced.lower()) == 3


def _computed(function: Callable[..., Any], *args: jax.Array) -> Computed:
    """What XLA makes of a function with its fusion emitters."""
    cpu = jax.devices("cpu")[0]
    compiled = jax.jit(function).lower(*args).compile(xla_options(cpu))
    return computed(compiled.as_text())


def test_products_over_other_axes_are_other_values():
    def products(x: jax.Array) -> tuple[jax.Array, ...]:
        return x @ x, x.T @ x, x @ x.T, x.T @ x.T

    made = _computed(products, jnp.ones((16, 16)))
    assert made.most == 1


def test_reductions_of_one_value_are_other_values():
    def reduced(x: jax.Array) -> tuple[jax.Array, ...]:
        return x.sum(), x.max(), x.min(), x.prod()

    made = _computed(reduced, jnp.ones((16, 16)))
    assert made.most == 1


def test_large_constants_are_other_values():
    tables = np.random.default_rng(0).standard_normal((3, 64, 64)).astype(np.float32)

    def looked_up(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jnp.tanh(x * table) for table in tables)

    made = _computed(looked_up, jnp.ones((64, 64)))
    assert made.most == 1


def test_loops_count_once():
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda _, h: jnp.tanh(h) * 0.5, x)

    made = _computed(loop, jnp.ones(8))
    assert made.most == 1 and 3 <= made.operations <= 6


def test_every_case_is_counted():
    assert set(FAST) < set(counts.COUNTED) < set(SMALL)
