"""Operations that differ in a number alone: the same results, and one kernel for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import SingleDeviceSharding

from emulator.plans.fusion import planned, trace_planned
from emulator.plans.shared_kernels import LEAST_SHARING

pytestmark = pytest.mark.usefixtures("fusion_emitters")

MANY = LEAST_SHARING + 4
X = np.random.default_rng(0).standard_normal((3, MANY, 4)).astype(np.float32)

Function = Callable[..., Any]


def columns(x: jax.Array) -> list[jax.Array]:
    return [jnp.cos(x[:, t]) for t in range(MANY)]


def chunks(x: jax.Array) -> list[jax.Array]:
    wide = jnp.tile(x, (1, 3, 1))
    return [jnp.cos(wide[:, 3 * t : 3 * t + 3]) for t in range(MANY)]


def patches(x: jax.Array) -> list[jax.Array]:
    return [jnp.cos(x[:, t : t + 2, s : s + 2]) for t in range(0, MANY - 2, 2) for s in (0, 2)]


def parts(x: jax.Array) -> list[jax.Array]:
    return [jnp.cos(part) for part in jnp.split(x * 2.0, MANY, axis=1)]


def numbers(x: jax.Array) -> list[jax.Array]:
    return [jnp.cos(x + t / 7) * (0.25 + t) for t in range(MANY)]


def whole_numbers(x: jax.Array) -> list[jax.Array]:
    n = (x * 8).astype(jnp.int32)
    return [jnp.where(n > t, n + 3 * t, lax.full_like(n, 5 - t)) for t in range(MANY)]


FUNCTIONS = (columns, chunks, patches, parts, numbers, whole_numbers)


def by_name(function: Function) -> str:
    return function.__name__


def compiled(function: Function, *arrays: Any) -> str:
    """What XLA makes of a planned function."""
    traced = jax.make_jaxpr(function)(*arrays)
    where = SingleDeviceSharding(jax.devices("cpu")[0])
    return trace_planned(traced, 0, where).lower().compile().as_text()


def bodies(text: str) -> set[str]:
    """The fused functions of a program, without their names."""
    found = re.findall(r"(?m)^%fused_computation[^\n]*\{\n(.*?)^\}", text, re.DOTALL)
    plain = [
        re.sub(r", metadata=\{[^}]*\}|(?<=[a-z])[._]?\d+(?:\.\d+)*\b", "", body) for body in found
    ]
    return {re.sub(r"%[\w.-]+", "%", body) for body in plain}


@pytest.mark.parametrize("function", FUNCTIONS, ids=by_name)
def test_results_are_the_same(function: Function) -> None:
    traced = jax.make_jaxpr(function)(X)
    changed = planned(traced)
    assert any(eqn.primitive.name == "clamp" for eqn in changed.jaxpr.eqns), "it was changed"
    wanted, found = jaxpr_as_fun(traced)(X), jax.jit(jaxpr_as_fun(changed))(X)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_max_ulp(
            np.asarray(one), np.asarray(other), 2 * (one.dtype.kind == "f")
        )


@pytest.mark.parametrize("function", [columns, chunks, patches, parts, numbers], ids=by_name)
def test_all_share_kernels(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA does not find out the numbers: it has few different functions to compile."""
    shared = bodies(compiled(function, X))
    monkeypatch.setattr("emulator.plans.shared_kernels.LEAST_SHARING", 10**9)
    assert len(shared) <= 7 < MANY - 4 <= len(bodies(compiled(function, X)))


@given(starts=st.lists(st.integers(0, 40), unique=True, min_size=LEAST_SHARING, max_size=30))
def test_slices_from_anywhere(starts: Sequence[int]) -> None:
    x = np.arange(50 * 2, dtype=np.int32).reshape(2, 50)
    changed = planned(jax.make_jaxpr(lambda x: [x[:, s : s + 9] for s in starts])(x))
    for start, found in zip(starts, jaxpr_as_fun(changed)(x), strict=True):
        np.testing.assert_array_equal(found, x[:, start : start + 9])


@given(
    values=st.lists(
        st.floats(width=32) | st.sampled_from([0.0, -0.0, np.nan, np.inf]), min_size=18, max_size=30
    )
)
def test_numbers_keep_their_bits(values: Sequence[float]) -> None:
    def run(x: jax.Array) -> list[jax.Array]:
        return [lax.full(x.shape, value, x.dtype) for value in values]

    changed = planned(jax.make_jaxpr(run)(X))
    for value, found in zip(values, jaxpr_as_fun(changed)(X), strict=True):
        assert np.asarray(found).tobytes() == np.full(X.shape, value, np.float32).tobytes()


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (lambda x: [x[:, t] for t in range(LEAST_SHARING - 1)], [X]),
        (lambda x: [jnp.concatenate([x, x])[:, t] for t in range(MANY)], [X]),
        (lambda x: [x[:, t : t + 1] + x[:, t + 1 : t + 2] for t in range(0, MANY, 2)], [X]),
        (lambda x: [x[:, t] for t in range(MANY)], [X > 0]),
        (lambda x: [x[:, 0] * 3.0 + t % 2 for t in range(MANY)], [X]),
    ],
    ids=["few", "joined before", "joined after", "no argument with numbers", "two numbers"],
)
def test_others_stay(function: Function, arrays: Sequence[Any]) -> None:
    changed = planned(jax.make_jaxpr(function)(*arrays))
    assert not any(e.primitive.name in ("clamp", "dynamic_slice") for e in changed.jaxpr.eqns)


def test_a_split_stays_where_nothing_is_shared() -> None:
    changed = planned(jax.make_jaxpr(lambda x: jnp.split(x, MANY, axis=1))(X > 0))
    assert [e.primitive.name for e in changed.jaxpr.eqns] == ["split"]


def test_arrays_that_are_divided_among_chips_are_sliced_as_they_are() -> None:
    changed = planned(jax.make_jaxpr(columns)(X), sharing=False)
    assert not any(e.primitive.name in ("clamp", "dynamic_slice") for e in changed.jaxpr.eqns)


def test_a_long_sum_is_made_in_parts() -> None:
    """No kernel reads a hundred arrays, and the parts share theirs."""
    arrays = [X[:, 0] + t for t in range(100)]

    def total(*arrays: jax.Array) -> jax.Array:
        found = arrays[0]
        for array in arrays[1:]:
            found = found + jnp.cos(array)
        return found

    text = compiled(total, *arrays)
    reads = [line.count("param_") for line in re.findall(r"(?m)^%fused_computation[^\n]*", text)]
    assert 16 < max(reads) <= 33
    assert len(bodies(text)) <= 3
    traced = jax.make_jaxpr(total)(*arrays)
    np.testing.assert_array_equal(jaxpr_as_fun(planned(traced))(*arrays)[0], total(*arrays))
