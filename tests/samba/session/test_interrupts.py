"""Signals around a run: it took place wholly or not at all, and nothing is lost."""

from __future__ import annotations

import copy
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import jax
import numpy as np
import pytest
import torch

import samba
from emulator.errors import LostMemory
from pef_schema.program import SectionKind
from tests.processes import joined
from tests.samba.session.interrupts import (
    STEPS,
    Injection,
    Storm,
    Training,
    deleted,
    device,
    forget_calls,
    handler,
)

# What a handler raises while Python runs a weak reference's callback, Python drops and reports.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def training(pefs):
    return Training(pefs)


def save() -> None:
    """What a script does after Ctrl-C: reading fails if anything is lost."""
    assert not deleted()
    for name in samba.session.get_weight_names():
        samba.session.get_tensors_by_name([name])


def bytecodes_that_see(found: Any, call: Any) -> list[str]:
    """Places of all bytecodes of a call at which something holds."""
    places = []

    def trace(frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and found():
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return places


def test_no_bytecode_of_a_repeated_run_sees_memory_given_away(training):
    """Handlers of signals run between two bytecodes, so none runs between giving and storing."""
    training.start_over()
    for number in (0, 1):
        training.step(number)
    assert not bytecodes_that_see(deleted, lambda: training.step(2))


def test_where_jax_needs_python_no_handler_is_there(training):
    """The first call of a form goes through jax's Python code: signals are held back there."""
    training.start_over()

    def own(number: int, frame: Any) -> None:
        raise AssertionError

    with handler(signal.SIGINT, own):

        def unprotected() -> bool:
            return bool(deleted()) and signal.getsignal(signal.SIGINT) is own

        for number in range(STEPS):
            if number == 2:  # also where the call is repeated, and only jax has forgotten
                for plan in device()._plans.values():
                    forget_calls(plan)
            seen = bytecodes_that_see(deleted, lambda number=number: training.step(number))
            assert seen or number not in (0, 2, 4), "the test would see it"
            training.step(1)
            assert not bytecodes_that_see(unprotected, lambda number=number: training.step(number))


def test_a_repeated_run_enters_no_python_function_on_its_way(training):
    training.start_over()
    training.step(0)
    training.step(1)
    inside: list[str] = []
    depth = calls = 0

    def watch(frame, event, argument):
        nonlocal depth, calls
        if event == "c_call" and argument.__name__ == "extend" and not depth:
            depth, calls = 1, calls + 1
        elif event == "c_return" and argument.__name__ == "extend":
            depth = 0
            assert not deleted()
        elif depth and event == "call":
            inside.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        training.step(2)
    finally:
        sys.setprofile(None)
    assert calls == 1 and not inside


def lines_of(training: Training, step: int) -> int:
    injection = Injection(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "step", injection.during(training.step, step))
        training.run_all()
    return injection.lines


def interrupted_at(training: Training, step: int, line: int) -> bool:
    """Train with an interrupt at a line of a step; returns whether the step has so many lines."""
    injection = Injection(line)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "step", injection.during(training.step, step))
            training.assert_as_expected(training.run_all(save))
    except BaseException as error:
        error.add_note(f"interrupted at line event {line} of step {step}, {injection.where}")
        raise
    return bool(injection.where)


def test_an_interrupt_at_any_line(training):
    totals = [lines_of(training, step) for step in range(STEPS)]
    assert totals[0] > 1000 < totals[4], "jax's Python path is among them"
    assert totals[2] < 500, "and here it is not"
    with handler(signal.SIGINT, signal.default_int_handler):
        for step, total in enumerate(totals):
            for line in range(step, total, total // 10):
                interrupted_at(training, step, line)


def test_a_handler_may_save_and_let_the_run_go_on(training, tmp_path):
    """What SIGTERM's handler finds are the weights after a whole number of steps."""
    states: dict[int, Any] = {}
    step = training.step

    def recorded(number: int) -> None:
        step(number)
        states[samba.session.counters.runs] = training.scene.weights()

    def checkpoint(number: int, frame: Any) -> None:
        scene, now = training.scene, samba.session.counters.runs
        samba.session.to_cpu(scene.model, scene.optimizer)
        torch.save(scene.model.state_dict(), tmp_path / "saved.pt")
        saved.append((now, torch.load(tmp_path / "saved.pt")))

    saved: list[tuple[int, Any]] = []
    places = [
        (step, line)
        for step in range(STEPS)
        for total in [lines_of(training, step)]
        for line in range(5, total - 5, total // 4)
    ]
    with handler(signal.SIGTERM, checkpoint), pytest.MonkeyPatch.context() as patch:
        for only, line in places:
            states.clear()
            training.start_over()
            states[samba.session.counters.runs] = training.scene.weights()
            patch.setattr(training, "start_over", lambda: None)
            injection = Injection(line, number=signal.SIGTERM)
            patch.setattr(training, "step", injection.during(recorded, only))
            training.assert_as_expected(training.run_all())
            patch.undo()
            assert saved, f"no checkpoint at line {line} of step {only}: {injection.where!r}"
            runs, weights = saved.pop()
            for name, value in states[runs].items():
                assert torch.equal(weights[name], value), (line, injection.where, name)
    assert not saved


class Places(Injection):
    """Notes the place of each line event: the lines of all calls that lead to it."""

    def __init__(self) -> None:
        super().__init__(None)
        self.places: list[tuple[Any, ...]] = []

    def _local(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            calls, caller = [], frame
            while caller is not None and "/tests/" not in caller.f_code.co_filename:
                calls.append((caller.f_code, caller.f_lineno))
                caller = caller.f_back
            self.places.append(tuple(calls))
        return super()._local(frame, event, argument)


def lines_in_few_turns(training: Training, step: int) -> list[int]:
    """The line events of a step, of loops those of the first two turns and of the last."""
    seen = Places()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "step", seen.during(training.step, step))
        training.run_all()
    turns: dict[Any, list[int]] = {}
    for line, place in enumerate(seen.places):
        turns.setdefault(place, []).append(line)
    return sorted({line for lines in turns.values() for line in (*lines[:2], lines[-1])})


@pytest.mark.slow
def test_an_interrupt_at_every_line(training):
    with handler(signal.SIGINT, signal.default_int_handler):
        for step in range(STEPS):
            lines = lines_in_few_turns(training, step)
            reached = [interrupted_at(training, step, line) for line in lines]
            # The run that was looked at may have had some lines more than those that follow.
            assert len(lines) > 100 and all(reached[: len(lines) * 9 // 10])


def weather(training: Training, wanted: int, *, by_thread: bool) -> None:
    """Train again and again until so many interrupts came; each training ends as expected."""
    storm = Storm(wanted, 2e-3, by_thread=by_thread)
    step = training.step

    def armed_step(number: int) -> None:
        try:
            storm.armed = True
            step(number)
        finally:
            storm.armed = False

    training.step = armed_step
    with storm.raging():
        while storm.count < wanted:
            training.assert_as_expected(training.run_all(save))
    assert not jax.config.jax_enable_x64, "jax's settings are as they were"
    thread = threading.Thread(target=samba.session.to_cpu, args=(training.scene.model,))
    thread.start()
    joined(thread)  # nobody has the program any more


@pytest.mark.parametrize("by_thread", [False, True])
def test_random_interrupts(training, by_thread):
    weather(training, 40, by_thread=by_thread)


@pytest.mark.slow
@pytest.mark.parametrize("by_thread", [False, True])
def test_300_random_interrupts(training, by_thread):
    weather(training, 300, by_thread=by_thread)


# -- copies between host and device --------------------------------------------------------------


def every_line(work: Any, check: Any, most: int) -> None:
    """Interrupt something at its lines; after each try a check follows."""
    counting = Injection(None, _OURS)
    counting.call(work)
    tried = 0
    with handler(signal.SIGINT, signal.default_int_handler):
        for line in range(0, counting.lines, max(1, counting.lines // most)):
            injection = Injection(line, _OURS)
            with suppress(KeyboardInterrupt):
                injection.call(work)
            tried += bool(injection.where)
            check(injection.where)
    assert tried > 20


_OURS = ("/emulator/", "/samba/")


def test_to_cpu_copies_all_or_nothing(training):
    scene = training.scene
    training.start_over()
    old = {n: p.detach().clone() for n, p in scene.model.named_parameters()}
    training.step(0)
    new = scene.weights()

    def check(where: str) -> None:
        host = {n: samba.to_torch(p.detach()) for n, p in scene.model.named_parameters()}
        momentum = [s["momentum_buffer"] for s in scene.optimizer.state.values()]
        done = all(torch.equal(host[n], new[n]) for n in new)
        assert done or all(torch.equal(host[n], old[n]) for n in old), where
        assert len(momentum) == (len(new) if done else 0), where
        with torch.no_grad():  # the host as it was
            for name, parameter in scene.model.named_parameters():
                parameter.data = old[name].clone()
        scene.optimizer.state.clear()

    def work() -> None:
        samba.session.to_cpu(scene.model, scene.optimizer)

    work()
    check("")
    every_line(work, check, 60)


def test_to_rdu_copies_all_or_nothing(training, caplog):
    scene = training.scene
    training.start_over()
    training.step(0)
    samba.session.to_cpu(scene.model, scene.optimizer)
    old = training.state()
    with torch.no_grad():
        for parameter in scene.model.parameters():
            parameter.data = parameter.data + 1.0
    new = {n: v + 1.0 if n in scene.weights() else v for n, v in old.items()}

    def check(where: str) -> None:
        now = training.state()
        done = all(torch.equal(now[n], new[n]) for n in new)
        assert done or all(torch.equal(now[n], old[n]) for n in old), where
        for name, value in old.items():
            device().write(device().region_of(regions[name]), value.numpy())

    names = {path: p.sn_name for path, p in scene.model.named_parameters()}
    regions = {name: names.get(name, name) for name in old}
    every_line(lambda: samba.session.to_rdu(scene.model, scene.optimizer), check, 60)


def test_an_evaluator_that_is_interrupted_leaves_the_weights(training):
    evaluator = samba.session.evaluator(training.scene.model)
    evaluator.run(training.batches[0])
    before = training.state()

    def check(where: str) -> None:
        assert not deleted(), where
        after = training.state()
        assert all(torch.equal(after[n], before[n]) for n in before), where

    every_line(lambda: evaluator.run(training.batches[0]), check, 60)
    training.assert_as_expected(training.run_all())


# -- memory that is lost for all that --------------------------------------------------------------


def broken(plan: Any) -> Any:
    """An executable that fails after it has taken its memory."""
    call = plan.call

    def run(*arrays: Any) -> Any:
        call(*arrays)
        raise RuntimeError("the executable failed")

    return run


def test_lost_memory_is_named(training):
    training.start_over()
    training.step(0)
    (plan,) = [p for p in device()._plans.values() if SectionKind.OPT in p.kinds]
    call = plan.call
    object.__setattr__(plan, "call", broken(plan))
    with pytest.raises(LostMemory, match="mlp__first__weight") as caught:
        training.step(1)
    object.__setattr__(plan, "call", call)
    assert str(caught.value.__cause__) == "the executable failed"
    assert {"mlp__first__weight", "mlp__seed"} <= set(caught.value.names)
    assert {"weight", "optimizer state", "seed"} <= set(caught.value.roles)
    for part in ("to_rdu(model)", "optimizers_to_rdu(optimizer)", "reset_random_generator()"):
        assert part in str(caught.value)
    assert not deleted()
    scene = training.scene
    for use in (
        lambda: training.step(1),
        lambda: scene.model.first.weight.sn_data,
        lambda: samba.session.to_cpu(scene.model),
        lambda: samba.session.optimizers_to_cpu(scene.optimizer),
        lambda: samba.session.get_tensors_by_name(["mlp__first__weight"]),
        lambda: samba.session.evaluator(scene.model).run(training.batches[0]),
    ):
        with pytest.raises(LostMemory):
            use()
    training.assert_as_expected(training.run_all())


def test_a_checkpoint_brings_lost_memory_back(training):
    scene = training.scene
    training.start_over()
    state = copy.deepcopy(scene.model.state_dict())
    training.step(0)
    for name in ("mlp__first__weight", "mlp__second__bias"):
        held: Any = device().pool.buffers[device().region_of(name)]
        held.delete()
    with pytest.raises(LostMemory) as caught:
        training.step(1)
    assert caught.value.names == ("mlp__first__weight", "mlp__second__bias")
    assert str(caught.value).count("session.") == 1, "only what is needed"
    scene.model.load_state_dict(state)
    training.step(1)
    assert not deleted()


def test_a_result_that_failed_is_named_where_it_is_read(training):
    """Executables run on after the call has returned: what fails then shows at the next use."""

    def fail(x: Any) -> Any:
        raise ValueError

    training.start_over()
    training.step(0)
    home = device().region_of("mlp__first__bias")
    held: Any = device().pool.buffers[home]
    form = jax.ShapeDtypeStruct(held.shape, held.dtype)
    matrix = np.zeros((2000, 2000), np.float32)
    slow = jax.jit(lambda a: (a @ a @ a).sum()).lower(matrix).compile()
    broken = jax.jit(lambda x, y: jax.pure_callback(fail, form, x + y))
    # Compiled beforehand, so that it is called while the slow one runs.
    broken = broken.lower(held, np.float32(0)).compile()
    device().pool.buffers[home] = broken(held, slow(matrix))
    with pytest.raises(LostMemory, match="destroyed the contents of weight mlp__first__bias"):
        samba.session.to_cpu(training.scene.model)
    with pytest.raises(LostMemory):
        training.step(1)
    training.assert_as_expected(training.run_all())
    jax._src.dispatch.runtime_tokens.clear()  # or jax tells of it again when the process ends


def test_a_user_error_is_no_lost_memory(training):
    training.start_over()
    training.step(0)
    with pytest.raises(RuntimeError, match="of the user"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device(), "run", fails)
        training.step(1)
    training.step(1)


def fails(*_: Any) -> None:
    raise RuntimeError("of the user")
