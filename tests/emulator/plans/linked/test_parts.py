"""Plans in parts give what the whole gives, and equal layers are compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import samba
from emulator.device import Device
from emulator.errors import LostMemory, PlanError
from emulator.plans.calls import SLOW
from emulator.plans.linked import compiling, parts
from emulator.plans.linked.compiling import Linked, link
from emulator.plans.linked.layers import Run, runs_of
from emulator.plans.linked.parts import parts_of
from emulator.plans.steps import all_steps
from pef_schema.program import Program
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.emulator.plans.test_sharing import Tower, device_of
from tests.emulator.platforms.test_start import on_two_devices
from tests.tracing import trace

WIDTH = 4
WHERE = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])


def in_parts(function: Callable[..., Any], donated: int, *arrays: Any) -> Linked:
    """A function in parts, which it has to have."""
    traced = jax.jit(function).trace(*arrays).jaxpr
    divided = parts_of(traced, donated)
    assert divided is not None
    return link(traced, divided, lambda lowered: lowered.compile(), WHERE)


def run(linked: Linked, *arrays: Any) -> list[np.ndarray]:
    try:
        return [np.asarray(a) for a in linked.call(*[jnp.array(a) for a in arrays])]
    finally:
        SLOW.end()


def tower(depth: int) -> Callable[..., Any]:
    """A step of equal layers: weights, then the loss and what the first layer reads."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = x + jnp.tanh(x @ w) * 0.5
        return (x * x).mean()

    def step(*arrays: Any) -> Any:
        *weights, x = arrays
        value, grads = jax.value_and_grad(loss)(weights, x)
        new = [w - 0.1 * jnp.sign(g) * jnp.abs(g) for w, g in zip(weights, grads, strict=True)]
        return (*new, value)

    assert depth > 0
    return step


def arrays_of(depth: int) -> list[np.ndarray]:
    draw = np.random.default_rng(depth)
    return [draw.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(depth + 1)]


@pytest.mark.parametrize("depth", [6, 7])
def test_a_tower_gives_what_the_whole_gives(depth: int) -> None:
    arrays = arrays_of(depth)
    linked = in_parts(tower(depth), depth, *arrays)
    expected = jax.jit(tower(depth))(*arrays)
    for ours, theirs in zip(run(linked, *arrays), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)
    assert linked.memory is not None and linked.memory.argument == 64 * (depth + 1)


def test_more_layers_need_no_more_executables() -> None:
    few, many = (len(in_parts(tower(n), n, *arrays_of(n)).executables) for n in (12, 24))
    assert few == many


def test_what_is_donated_is_consumed_and_nothing_else() -> None:
    depth = 8
    arrays = [jnp.array(a) for a in arrays_of(depth)]
    linked = in_parts(tower(depth), depth, *arrays)
    linked.call(*arrays)
    SLOW.end()
    assert [a.is_deleted() for a in arrays] == [True] * depth + [False]


def test_arguments_literals_and_what_is_given_twice_are_arrays_of_their_own() -> None:
    results = ["x", "again", "value", "one", "x", "one"]
    depth = 8
    step = tower(depth)

    def function(*arrays: Any) -> Any:
        value = step(*arrays)[-1]
        named = {"x": arrays[-1], "again": value, "value": value, "one": 1.0}
        return (*step(*arrays), *[named[name] for name in results])

    arrays = arrays_of(depth)
    linked = in_parts(function, 0, *arrays)
    given_back = linked.call(*[jnp.array(a) for a in arrays])
    SLOW.end()
    places = [a.unsafe_buffer_pointer() for a in given_back]
    assert len({*places}) == len(places)
    for ours, theirs in zip(given_back, jax.jit(function)(*arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


def test_an_argument_that_is_given_back_is_not_consumed_before() -> None:
    depth = 8

    def function(*arrays: Any) -> Any:
        return (*tower(depth)(*arrays), *arrays[:depth])

    arrays = arrays_of(depth)
    back = run(in_parts(function, depth, *arrays), *arrays)
    for ours, theirs in zip(back[-depth:], arrays[:depth], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_mask_that_all_layers_share_is_made_once() -> None:
    def function(*arrays: Any) -> Any:
        *weights, x = arrays
        for w in weights:
            seen = jnp.arange(WIDTH)[:, None] >= jnp.arange(WIDTH)[None]
            x = x + jnp.where(seen, jnp.tanh(x @ w), 0.0)
        return (x,)

    arrays = arrays_of(9)
    traced = jax.jit(function).trace(*arrays).jaxpr
    divided = parts_of(traced, 0)
    assert divided is not None
    made = [e for part in divided.parts for e in part.eqns if e.primitive.name == "ge"]
    assert len(made) == 1
    linked = link(traced, divided, lambda lowered: lowered.compile(), WHERE)
    np.testing.assert_allclose(run(linked, *arrays)[0], jax.jit(function)(*arrays)[0], rtol=2e-6)


def test_views_are_made_again_where_they_are_read() -> None:
    """No part gives a transpose, which XLA would have to write in the order of its elements."""
    arrays = arrays_of(9)
    divided = parts_of(jax.jit(tower(9)).trace(*arrays).jaxpr, 9)
    assert divided is not None
    for part in divided.parts:
        moved = {v for e in part.eqns if e.primitive.name == "transpose" for v in e.outvars}
        assert moved.isdisjoint(part.gives)


def test_what_differs_in_one_number_is_not_shared() -> None:
    def function(*arrays: Any) -> Any:
        *weights, x = arrays
        for k, w in enumerate(weights):
            x = x + jnp.tanh(x @ w) * (0.5 if k != 5 else 0.25)
        return (x,)

    arrays = arrays_of(12)
    linked = in_parts(function, 0, *arrays)
    np.testing.assert_allclose(run(linked, *arrays)[0], jax.jit(function)(*arrays)[0], rtol=2e-6)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_has_no_equal_layers_stays_whole(depth: int) -> None:
    traced = jax.jit(lambda x: jnp.tanh(x) * jnp.cos(x) + depth).trace(arrays_of(depth)[0])
    assert parts_of(traced.jaxpr, 0) is None


def test_few_layers_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = jax.jit(tower(8)).trace(*arrays_of(8)).jaxpr
    assert parts_of(traced, 8) is not None
    monkeypatch.setattr(parts, "LEAST_SPARED", 10**6)
    assert parts_of(traced, 8) is None


def test_a_plan_with_effects_stays_whole() -> None:
    def function(*arrays: Any) -> Any:
        jax.debug.print("{}", arrays[0][0, 0])
        return tower(8)(*arrays)

    assert parts_of(jax.jit(function).trace(*arrays_of(8)).jaxpr, 8) is None


def test_parts_run_on_the_device_that_was_asked_for() -> None:
    out = on_two_devices(
        """
        import jax, jax.numpy as jnp
        from emulator.plans.calls import SLOW
        from emulator.plans.linked import layers, parts
        from emulator.plans.linked.compiling import link

        parts.LEAST_SPARED = layers.LEAST_SPARED = 4
        parts.LEAST_SECONDS = layers.LEAST_SECONDS = 1e-12
        second = jax.sharding.SingleDeviceSharding(jax.devices()[1])

        def function(*arrays):
            *weights, x = arrays
            for w in weights:
                x = x + jnp.tanh(x @ w) * jnp.where(jnp.arange(4) > 1, 1.0, 2.0)
            return (x, 1.0, x)

        arrays = [jax.device_put(jnp.eye(4) * k, second) for k in range(9)]
        traced = jax.jit(function).trace(*arrays).jaxpr
        divided = parts.parts_of(traced, 0)
        results = link(traced, divided, lambda low: low.compile(), second).call(*arrays)
        SLOW.end()
        print(len(divided.parts) > 2, {d.id for r in results for d in r.devices()})
        """,
    )
    assert out == "True {1}\n"


BLOCKS = 8


@pytest.fixture(scope="module")
def model() -> Tower:
    torch.manual_seed(0)
    return Tower(BLOCKS).double()


@pytest.fixture(scope="module")
def program(model: Tower) -> Program:
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.01)
    traced = trace(model, (torch.ones(2, 8, dtype=torch.float64),))
    return build_program(traced, [optimizer], CompileOptions(name="tower", optim_level="o3"))


def kept(device: Device) -> list[np.ndarray | None]:
    return [None if b is None else np.asarray(b) for b in device.pool.buffers]


def test_steps_leave_what_steps_of_the_whole_leave(model: Tower, program: Program) -> None:
    divided, whole = device_of(program, model), device_of(program, model)
    steps = all_steps(program)
    plan = whole.plan(steps)
    assert whole.is_compiled(steps) and not whole.is_compiled(steps, whole=True)
    one = whole.plan(steps, whole=True)
    assert whole.plan(steps) is one and whole.is_compiled(steps, whole=True)
    assert len(one.executables) == 1 < len(plan.executables) < BLOCKS
    assert (plan.reads, plan.writes, plan.drops) == (one.reads, one.writes, one.drops)
    assert plan.memory is not None and one.memory is not None
    assert (plan.memory.argument, plan.memory.alias) == (one.memory.argument, one.memory.alias)
    assert 0 < plan.memory.temp < 4 * one.memory.temp
    for _ in range(3):
        divided.run(plan)
        whole.run(one)
    for ours, theirs in zip(kept(divided), kept(whole), strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours is not None
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_part_that_fails_tells_what_was_consumed_before(
    model: Tower, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls, fails = compiling.direct_call, [], set[int]()

    def failing(compiled: object) -> Callable[..., object]:
        number = len(calls)
        calls.append(compiled)
        run = real(compiled)
        return lambda *arrays: fail() if number in fails else run(*arrays)

    def fail() -> object:
        raise RuntimeError("INTERNAL: no")

    monkeypatch.setattr(compiling, "direct_call", failing)
    device = device_of(program, model)
    plan = device.plan(all_steps(program))
    for good, error in ((0, PlanError), (-1, LostMemory)):
        fails.clear()
        fails.add(range(len(calls))[good])
        with pytest.raises(error):
            device.run(plan)


@given(
    before=st.lists(st.integers(100, 120), max_size=6),
    layer=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True),
    count=st.integers(2, 12),
    behind=st.lists(st.integers(200, 220), max_size=6),
)
def test_a_run_is_found_between_others(
    before: list[int], layer: list[int], count: int, behind: list[int]
) -> None:
    forms = [*before, *layer * count, *behind]
    found = runs_of(forms, [1] * len(forms), least=len(layer) * (count - 1))
    covered = len(layer) * count
    assert Run(start=len(before), period=len(layer), covered=covered) in found


def test_runs_do_not_overlap_and_light_ones_are_left_out() -> None:
    forms = [*"ab" * 5, "-", *"xyz" * 3]
    weights = [1] * 11 + [0] * 9
    assert runs_of(forms, weights, least=1) == [Run(start=0, period=2, covered=10)]
    both = runs_of(forms, [1] * 20, least=1)
    assert [(r.start, r.period, r.covered) for r in both] == [(0, 2, 10), (11, 3, 9)]


@pytest.mark.parametrize("forms", ["", "a", "ab", "abcdef"])
def test_what_does_not_repeat_has_no_run(forms: str) -> None:
    assert runs_of(forms, [1] * len(forms), least=1) == []
