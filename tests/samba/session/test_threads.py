"""Threads take turns on a session; what is called within a run is done or refused."""

from __future__ import annotations

import copy
import pickle
import signal
import sys
import threading
from collections.abc import Callable

import pytest
import torch

import samba
from emulator.device import Device
from samba.errors import NotCopyable, SessionInUse
from samba.session import SambaSession
from samba.session.running import Runner
from tests.samba.worlds import MLP, close, named, other_batch

_SECONDS = 60.0
"""For threads that take some tenths of a second; a deadlock is reported after so many."""


@pytest.fixture(autouse=True)
def _fast_switches():
    """Threads change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def together(*calls: Callable[[], object]) -> list[BaseException]:
    """Run each call in a thread of its own; what they raise."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def work(call):
        try:
            gate.wait(_SECONDS)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    return errors


def times(count: int, call: Callable[[], object]) -> Callable[[], None]:
    def repeated():
        for _ in range(count):
            call()

    return repeated


def assert_as_alone(pefs, scene, steps):
    """The weights are those that a lone thread would have trained."""
    found = scene.weights()
    alone = pefs.loaded(MLP)
    batch = named(other_batch())
    for _ in range(steps):
        samba.session.run(batch, alone.model.output_tensors)
    for path, weight in alone.weights().items():
        assert torch.equal(found[path], weight), path


@pytest.mark.parametrize("what", ["to_cpu", "sn_data", "evaluate", "synchronize", "run", "load"])
def test_a_call_waits_for_the_run_under_way(scene, what):
    """What it reads is of the finished step; a program stays until its run has returned."""
    evaluator = samba.session.evaluator(scene.model)
    scene.run()
    first = scene.model.first.weight
    calls = {
        "to_cpu": lambda: samba.session.to_cpu(scene.model),
        "sn_data": lambda: first.sn_data,
        "evaluate": lambda: evaluator.run(scene.inputs),
        "synchronize": samba.session.synchronize,
        "run": lambda: samba.session.run(scene.inputs, (), section_types=["fwd"]),
        "load": scene.trace,
    }
    device, whole = samba.session.need_loaded("run()").device, Device.run
    inside, go = threading.Event(), threading.Event()
    order: list[bool] = []

    def slow(which, plan):
        if which is device and not inside.is_set():
            inside.set()
            assert go.wait(_SECONDS)
        whole(which, plan)

    def other():
        assert inside.wait(_SECONDS)
        threading.Timer(0.2, go.set).start()
        calls[what]()
        order.append(go.is_set())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "run", slow)
        assert together(scene.run, other) == []
    assert order == [True], f"{what} did not wait"
    for _ in range(2):
        scene.host_step()
    if what == "to_cpu":
        close(samba.to_torch(first), scene.host.first.weight.detach())


def test_one_thread_trains_while_others_read(pefs):
    """A read waits for the run under way, whose weights are in motion."""
    scene = pefs.loaded(MLP)
    batch = named(other_batch())
    run = times(30, lambda: samba.session.run(batch, scene.model.output_tensors))
    seen: list[torch.Tensor] = []

    def read():
        samba.session.to_cpu(scene.model)
        samba.session.get_tensors_by_name(scene.model.first.weight.sn_name)
        seen.append(scene.model.first.weight.sn_data)

    assert together(run, times(30, read)) == []
    assert samba.session.counters.runs == 30
    assert all(torch.isfinite(weights).all() for weights in seen)
    assert_as_alone(pefs, scene, 30)


def test_threads_that_run_different_parts_each_get_their_own(scene):
    """A call's inputs are its own, whatever another thread feeds."""
    batches = [other_batch(seed) for seed in range(3)]
    wanted = [scene.host(**batch)[0].detach() for batch in batches]
    wrong: list[int] = []

    def forward(number):
        inputs, outputs = named(batches[number]), scene.model.output_tensors

        def call():
            loss, _ = samba.session.run(inputs, outputs, section_types=["fwd"])
            # Wanted is torch's; another thread's batch would be off in the first digits.
            if not torch.allclose(samba.to_torch(loss), wanted[number], rtol=1e-5):
                wrong.append(number)

        return times(100, call)

    assert together(*[forward(number) for number in range(3)]) == []
    assert wrong == []


def test_an_evaluator_keeps_to_its_batch_while_another_thread_comes_with_a_smaller_one(
    pefs, monkeypatch
):
    """The other thread comes where the first one compares the shapes of its batch."""
    scene = pefs.loaded(MLP)
    evaluator = samba.session.evaluator(scene.model)
    batch = other_batch()
    small = {name: tensor[:2] for name, tensor in batch.items()}
    original = Runner.shapes

    class Interrupted(dict):
        def get(self, *args):
            monkeypatch.setattr(Runner, "shapes", original)
            evaluator.run(named(small))
            self.get = super().get
            return super().get(*args)

    monkeypatch.setattr(Runner, "shapes", lambda self, given: Interrupted(original(self, given)))
    loss, _ = evaluator.run(named(batch))
    scene.host.eval()
    torch.testing.assert_close(samba.to_torch(loss), scene.host(**batch)[0].detach())


def test_an_evaluating_thread_beside_one_that_trains(pefs):
    scene = pefs.loaded(MLP)
    evaluator = samba.session.evaluator(scene.model)
    batch = named(other_batch())
    small = {name: tensor[:2] for name, tensor in other_batch().items()}
    assert (
        together(
            times(100, lambda: samba.session.run(batch, scene.model.output_tensors)),
            times(50, lambda: evaluator.run(batch)),
            times(50, lambda: evaluator.run(named(small))),
        )
        == []
    )
    assert_as_alone(pefs, scene, 100)


def test_a_run_that_comes_after_another_load_is_told(scene):
    old = samba.session.need_loaded("run()")
    scene.trace()
    with pytest.raises(SessionInUse, match="another thread has loaded something else"):
        old.turns.run("run()", lambda: None)


def test_two_sessions_run_side_by_side(pefs, tmp_path):
    """A lock is of one loaded program: while one is in the middle of a run, the other runs."""
    one, two = pefs.loaded(MLP), pefs.scene(MLP)
    second = SambaSession()
    second.load(
        two.model,
        two.inputs,
        two.optimizer,
        pef=one.pef,
        loss_indices=None,
        transfer_device=True,
        config={},
    )
    mine = second.need_loaded("run()").device
    whole, ran = Device.run, threading.Event()

    def run(device, plan):
        if device is mine:
            whole(device, plan)
            ran.set()
        else:
            assert ran.wait(_SECONDS), "the other session waited for this one"
            whole(device, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "run", run)
        assert together(one.run, lambda: second.run(two.inputs, two.model.output_tensors)) == []
    second.reset()


@pytest.fixture
def within(pefs, monkeypatch):
    """A scene, and a way to call something in the middle of its next run."""
    scene = pefs.loaded(MLP)
    scene.run()
    whole = Device.run

    def call(action):
        caught: list[Exception] = []

        def run(device, plan):
            monkeypatch.setattr(Device, "run", whole)
            try:
                action()
            except Exception as error:
                caught.append(error)
            whole(device, plan)

        monkeypatch.setattr(Device, "run", run)
        batch = other_batch(7)
        scene.host_step()
        wanted = scene.host_step(batch)
        loss, _ = scene.run(named(batch))
        close(loss, wanted[0])
        scene.assert_follows()
        return caught[0] if caught else None

    return scene, call


@pytest.mark.parametrize(
    "action",
    [
        lambda scene: samba.session.run(scene.inputs, scene.model.output_tensors),
        lambda scene: samba.session.run(section_types=["fwd"]),
        lambda scene: scene.trace(),
        lambda scene: samba.session.reset(),
    ],
    ids=["run", "other run", "trace_graph", "reset"],
)
def test_a_run_within_a_run_is_refused(within, action):
    """It would take the other's inputs; the run itself is as if nothing had been asked."""
    scene, call = within
    error = call(lambda: action(scene))
    assert isinstance(error, SessionInUse)
    assert "in the middle of another call of the session" in str(error)


def test_an_evaluation_within_a_run_is_refused(within):
    scene, call = within
    evaluator = samba.session.evaluator(scene.model)
    assert isinstance(call(lambda: evaluator.run(scene.inputs)), SessionInUse)
    evaluator.run(scene.inputs)


def test_reading_within_a_run_is_done(within):
    scene, call = within
    assert call(lambda: samba.session.to_cpu(scene.model)) is None


def test_a_run_while_forward_is_traced_is_refused(scene, tmp_path):
    told = []

    class Running(torch.nn.Linear):
        def forward(self, input):
            try:
                scene.run()
            except Exception as error:
                told.append(error)
            return super().forward(input)

    model = samba.from_torch_model_(Running(2, 2))
    config = {"pef_name": "other", "output_folder": str(tmp_path)}
    samba.session.compile(model, (samba.ones(1, 2),), inference=True, config_dict=config)
    assert told and all(isinstance(error, SessionInUse) for error in told)
    assert "while a model is being traced" in str(told[0])
    scene.run()


def test_an_error_leaves_the_session_to_the_next_call(scene, monkeypatch):
    """Nothing of the failed run is left, for this thread or another."""
    scene.run()
    with pytest.raises(samba.errors.SambaError):
        samba.session.run(scene.inputs, "no such output")
    assert samba.session.need_loaded("run()").turns.thread == 0
    assert together(scene.run) == []
    scene.run()
    samba.session.to_cpu(scene.model)
    scene.run()
    assert samba.session.counters.runs == 4
    scene.trace()


def test_sessions_are_not_copied(scene):
    evaluator = samba.session.evaluator(scene.model)
    loaded = samba.session.need_loaded("copy")
    for item, name in ((samba.session, "session"), (loaded, "program"), (evaluator, "evaluator")):
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotCopyable, match=f"{name} cannot be copied or pickled"):
                take(item)
    copied = copy.deepcopy(scene.model)
    assert torch.equal(copied.first.weight, scene.model.first.weight)


def test_a_run_enters_no_function_for_its_turn(scene):
    """It takes a lock, and no more."""
    for _ in range(3):
        scene.run()
    files = set()

    def count(frame, event, argument):
        files.add(frame.f_code.co_filename.rsplit("/", 1)[-1])

    sys.setprofile(count)
    try:
        samba.session.run(scene.inputs, scene.model.output_tensors)
    finally:
        sys.setprofile(None)
    assert "running.py" in files
    assert not files & {"turns.py", "threading.py", "forks.py", "tracing.py"}, files


def test_a_handler_saves_in_the_middle_of_training(scene):
    """A signal's handler copies weights to the host; it waits for nothing and loses nothing."""
    initial = [p.detach().clone() for p in scene.model.parameters()]
    saved = []

    def start_over():
        scene.optimizer.state.clear()
        for parameter, values in zip(scene.model.parameters(), initial, strict=True):
            parameter.data = values.clone()
        samba.session.to_rdu(scene.model, scene.optimizer)

    def handler(number, frame):
        samba.session.to_cpu(scene.model)
        saved.append(scene.model.first.weight.detach().clone())

    start_over()
    steps = 0
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        while len(saved) < 20:
            scene.run()
            steps += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found = scene.weights()
    start_over()
    for _ in range(steps):
        scene.run()
    undisturbed = scene.weights()
    assert all(torch.equal(found[name], undisturbed[name]) for name in undisturbed)
