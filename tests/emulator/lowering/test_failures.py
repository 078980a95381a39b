"""Whatever fails while a program is lowered, compiled or run is an error of the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

import emulator.plans.plan as plans
from emulator.device import Device
from emulator.errors import DeviceError, LoweringError, PlanError
from emulator.lowered_whole import lower_everything
from emulator.lowering.failures import failures_of, reason_of
from emulator.plans.steps import all_steps
from pef_schema import Ref, verify
from pef_schema.program import Arg
from tests.emulator.contract.programs import with_node
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference, nothing

X = Ref(0)
_MISFITS: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "shapes": ("aten.mm.default", (X, X)),
    "permutation": ("aten.permute.default", (X, (0,))),
    "sizes": ("aten.view.default", (X, (5, 5))),
    "another shape": ("aten.sum.default", (X,)),
    "huge": ("aten.expand.default", (X, (2**40, 2, 3))),
    "mode": ("samba.cast_bf16.input", (X, "sideways")),
    "weight": ("aten.linear.default", (X, X, X)),
}


@pytest.mark.parametrize("name", _MISFITS)
def test_a_node_that_cannot_be_lowered_is_named(name: str) -> None:
    program = with_node(*_MISFITS[name])
    device = Device(program)
    with pytest.raises(LoweringError) as caught:
        device.plan(all_steps(program))
    error = caught.value
    assert (error.op, error.module, error.source) == (
        program.graphs[0].nodes[0].op,
        "tiny",
        "tiny.py:3",
    )
    assert f"{error.op} in tiny at tiny.py:3: " in str(error)


def test_the_error_of_the_library_is_its_cause() -> None:
    with pytest.raises(LoweringError) as caught:
        Device(with_node("aten.mm.default", (X, X))).plan(((0, 0),))
    assert isinstance(caught.value.__cause__, TypeError)
    assert caught.value.reason.startswith("TypeError: dot_general requires contracting dimensions")


def test_what_an_operation_says_itself_is_told_with_its_place() -> None:
    """Found by fuzzing: errors of ``emulator.ops`` are none of the device."""
    with pytest.raises(LoweringError, match=r"^samba\.cast_bf16\.input in tiny at ") as e:
        Device(with_node(*_MISFITS["mode"])).plan(((0, 0),))
    assert "found mode 'sideways', expected 'nearest_even'" in e.value.reason


@pytest.mark.parametrize(
    "kind",
    [TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError, MemoryError],
)
def test_no_error_of_a_library_passes(kind: type[Exception]) -> None:
    node = inference().graphs[0].nodes[0]
    match = rf"^aten.mul.Tensor in tiny at tiny.py:3: {kind.__name__}: '?x'?$"
    with pytest.raises(LoweringError, match=match) as caught, failures_of(node):
        raise kind("x")
    assert isinstance(caught.value.__cause__, kind)


def test_interrupts_and_errors_of_this_project_pass() -> None:
    node = inference().graphs[0].nodes[0]
    for error in (KeyboardInterrupt(), SystemExit(1), DeviceError("mine")):
        with pytest.raises(type(error)) as caught, failures_of(node):
            raise error
        assert caught.value is error


def test_a_reason_is_one_short_line() -> None:
    assert reason_of(ValueError("a\n  b")) == "ValueError: a b"
    assert len(reason_of(ValueError("x" * 10_000))) < 600
    assert reason_of(MemoryError()) == "MemoryError"


def test_what_xla_refuses_is_an_error_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "xla_options", lambda _: {"xla_no_such_option": "1"})
    with pytest.raises(PlanError, match=r"compiling tiny.fwd: .*xla_no_such_option") as caught:
        Device(inference()).plan(((0, 0),))
    assert caught.value.steps == ("tiny.fwd",)
    assert caught.value.__cause__ is not None


def test_an_executable_that_fails_is_an_error_of_the_device() -> None:
    device = Device(inference())
    device.write(0, np.zeros((2, 3), np.float32))
    plan = device.plan(((0, 0),))

    def fails(*_: Any) -> NoReturn:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with pytest.raises(
        PlanError, match="running steps of kind FWD: RuntimeError: RESOURCE_EXHAUST"
    ):
        device.run(replace(plan, call=fails))

    def interrupted(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.run(replace(plan, call=interrupted))


def test_lowering_everything_finds_what_no_schedule_calls() -> None:
    program = inference()
    lower_everything(program)
    (node,), (section,) = program.graphs[0].nodes, program.sections
    idle = replace(node, op="aten.mm.default", args=(X, X), outputs=(-1,), source="tiny.py:4")
    step = replace(section.steps[0], nodes=(1,), writes=())
    program = replace(
        edit(program, "graphs.0", nodes=(node, idle)),
        sections=(section, replace(section, name="idle", steps=(step,), twin=1)),
    )
    verify(program)
    Device(program).lower(all_steps(program))
    with pytest.raises(LoweringError, match=r"aten.mm.default in tiny at tiny.py:4"):
        lower_everything(program)


def test_a_program_without_anything_opens_and_lowers() -> None:
    lower_everything(nothing())
    device = Device(nothing())
    device.run(device.plan(()))
    assert device.counters.runs == 1
