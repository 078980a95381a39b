"""Random programs, planned and compiled: XLA computes no value in three kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from jax.extend.core import jaxpr_as_fun
from jax.sharding import SingleDeviceSharding

from bench.fusion import computed
from emulator.plans.executable_cache import compiled_or_kept
from emulator.plans.fusion import planned, trace_planned
from emulator.plans.xla_options import xla_options

pytestmark = pytest.mark.usefixtures("fusion_emitters")

FEWER = settings().max_examples // 3
"""Each is compiled."""
SIZE = 16
X = np.random.default_rng(0).uniform(0.5, 1.5, (SIZE, SIZE)).astype(np.float32)

OPERATIONS: Sequence[Callable[[jax.Array, jax.Array], jax.Array]] = (
    lambda a, b: a + b,
    lambda a, b: a * b * 0.25,
    lambda a, b: jnp.maximum(a, b),
    lambda a, b: jnp.where(a > b, a, b * 0.5),
    lambda a, b: jnp.cos(a) + b,
    lambda a, b: a * jax.nn.sigmoid(b),
    lambda a, b: a - b.mean(1, keepdims=True),
    lambda a, b: a.T + b,
    lambda a, b: jnp.roll(a, 1, 0) * b,
    lambda a, b: a @ b / SIZE,
    lambda a, b: jnp.concatenate([a[:3], b[3:]]),
    lambda a, b: jnp.stack([a[:8], b[8:]]).reshape(SIZE, SIZE),
    lambda a, b: a / (1.0 + b * b),
)

Node = tuple[int, int, int]
"""An operation, and how many values before the last its operands are."""

programs = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 4), st.integers(0, 4)),
    min_size=3,
    max_size=24,
)


def running(nodes: Sequence[Node]) -> Callable[[jax.Array], Any]:
    def run(x: jax.Array) -> Any:
        values = [x, x * 2.0]
        for operation, first, second in nodes:
            a, b = (values[max(len(values) - 1 - back, 0)] for back in (first, second))
            values.append(OPERATIONS[operation](a, b))
        return [values[-1], values[-2].sum(0), values[len(values) // 2].sum(1)]

    return run


@settings(max_examples=FEWER)
@given(programs)
@example([(9, 2, 2), (3, 2, 4), (9, 2, 2), (10, 3, 1), (0, 1, 0), (2, 1, 3), (8, 4, 2)])
def test_no_value_is_computed_in_three_kernels(nodes: list[Node]) -> None:
    cpu = jax.devices("cpu")[0]
    traced = jax.make_jaxpr(running(nodes))(X)
    lowered = trace_planned(traced, 0, SingleDeviceSharding(cpu)).lower()
    made = computed(compiled_or_kept(lowered, xla_options(cpu)).compiled.as_text())
    assert made.most <= 2, made.which


@settings(max_examples=FEWER)
@given(programs)
def test_each_operation_gives_the_same_bits(nodes: list[Node]) -> None:
    traced: Any = jax.make_jaxpr(running(nodes))(X)
    changed = planned(traced)
    with jax.disable_jit():  # each operation is an executable: nothing is fused
        wanted, found = jaxpr_as_fun(traced)(X), jaxpr_as_fun(changed)(X)
    for one, other in zip(wanted, found, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
