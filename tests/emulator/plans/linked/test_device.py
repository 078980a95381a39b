"""A device runs equal layers by shared executables: same numbers, same memory, same errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import samba
from emulator.device import Device
from emulator.errors import LostMemory, PlanError
from emulator.plans.linked import compiling, parts
from emulator.plans.steps import all_steps
from pef_schema.program import Program
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.emulator.plans.test_sharing import Tower, device_of
from tests.tracing import trace

BLOCKS = 12


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


@pytest.mark.parametrize(("good", "error"), [(0, PlanError), (-1, LostMemory)])
def test_a_part_that_fails_tells_what_was_consumed_before(
    model: Tower,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    good: int,
    error: type[Exception],
) -> None:
    real, calls = compiling.direct_call, []
    monkeypatch.setattr(compiling, "direct_call", lambda c: calls.append(c) or real(c))
    device_of(program, model).plan(all_steps(program))
    fails = range(len(calls))[good]
    calls.clear()

    def failing(compiled: object) -> Callable[..., object]:
        calls.append(compiled)
        return fail if len(calls) == fails + 1 else real(compiled)

    def fail(*arrays: object) -> object:
        raise RuntimeError("INTERNAL: no")

    monkeypatch.setattr(compiling, "direct_call", failing)
    device = device_of(program, model)
    with pytest.raises(error):
        device.run(device.plan(all_steps(program)))


def test_few_layers_stay_whole(
    model: Tower, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_SPARED", 10**6)
    assert len(device_of(program, model).plan(all_steps(program)).executables) == 1
