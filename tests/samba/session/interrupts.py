"""Training that is interrupted at chosen or random places, beside the same without."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch

import samba
from emulator.device import Device
from emulator.trace_settings import SET, SETTING
from tests.processes import joined
from tests.samba.worlds import Mlp, Pefs, Scene, Tensors, World, named, sgd

STEPS = 6
DROPPING = World(name="dropping", model=lambda: Mlp(0.5), optimizer=sgd())
"""Weights, momentum and a random stream: all of them must go on where they were."""

_FILES = ("/emulator/", "/samba/", "/pef_schema/", "/jax/", "contextlib.py")


def other_batches() -> list[Any]:
    """A batch for each step."""
    made = []
    for seed in range(STEPS):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(5, 4, generator=generator)
        made.append(named({"x": x, "y": torch.randint(3, (5,), generator=generator)}))
    return made


def device() -> Device:
    """The device of the loaded program."""
    loaded = samba.session._slot.loaded
    assert loaded is not None
    return loaded.device


def deleted() -> list[str]:
    """Regions whose array jax has deleted."""
    regions = device().program.regions
    return [
        regions[i].name
        for i, buffer in enumerate(device().pool.buffers)
        if isinstance(buffer, jax.Array) and buffer.is_deleted()
    ]


class Training:
    """A few steps of different kinds, which can be started over as often as wanted.

    Args:
        pefs: Where the world's PEF is.
    """

    def __init__(self, pefs: Pefs) -> None:
        self.scene: Scene = pefs.loaded(DROPPING)
        self.batches = other_batches()
        self._initial = [p.detach().clone() for p in self.scene.model.parameters()]
        self.run_all()  # compiles what is needed
        self.expected = self.run_all()

    def start_over(self) -> None:
        """Initial weights, momentum and random stream; jax has seen no call."""
        scene = self.scene
        scene.optimizer.state.clear()
        for parameter, values in zip(scene.model.parameters(), self._initial, strict=True):
            parameter.data = values.clone()
        samba.session.to_rdu(scene.model, scene.optimizer)
        samba.session.reset_random_generator()
        samba.session.run(self.batches[0], (), {"lr": 0.1}, section_types=["FWD"])
        samba.session.reset_random_generator()
        for plan in device()._plans.values():
            forget_calls(plan)

    def step(self, number: int) -> None:
        """One step; each kind of call is among them."""
        outputs = self.scene.model.output_tensors
        run = samba.session.run
        batch = self.batches[number]
        match number:
            case 0 | 1 | 2:  # the first is prepared, jax has not seen it; then they are repeated
                run(batch, outputs, {"lr": 0.1})
            case 3:  # prepared again
                run(batch, outputs, {"lr": 0.05})
            case 4:  # what the device has, in another form
                device().write(device().region_of("x"), batch[0].numpy())
                device().write(device().region_of("y"), batch[1].numpy())
                run(None, outputs, {"lr": 0.05})
            case _:
                run(batch, outputs, {"lr": 0.05})

    def run_all(self, interrupted: Callable[[], Any] | None = None) -> Tensors:
        """All steps, each until it took place.

        Args:
            interrupted: What the script does after an interrupt.

        Returns:
            Weights and optimizer state at the end.
        """
        self.start_over()
        for number in range(STEPS):
            runs = samba.session.counters.runs
            while samba.session.counters.runs == runs:
                try:
                    self.step(number)
                except KeyboardInterrupt as error:
                    took_place = samba.session.counters.runs != runs
                    said = "took place" in "".join(getattr(error, "__notes__", ()))
                    assert said == took_place, "the note says what the counter says"
                    turns = samba.session.need_loaded("run()").turns
                    assert not turns.thread, "no run is under way any more"
                    if interrupted is not None:
                        interrupted()
            assert samba.session.counters.runs == runs + 1
        return self.state()

    def state(self) -> Tensors:
        """Weights and optimizer state on the device."""
        return self.scene.weights() | {n: s.sn_data for n, s in samba.session.optim_dict.items()}

    def assert_as_expected(self, found: Tensors) -> None:
        """Nothing is lost, and nothing was done twice."""
        assert not deleted()
        for name, value in self.expected.items():
            assert torch.equal(found[name], value), name


def forget_calls(plan: Any) -> None:
    """Make jax take its Python path again for the next call of a plan."""
    try:
        from emulator.plans.calls import direct_call  # older code has none
    except ImportError:
        plan.call._call = None
    else:
        object.__setattr__(plan, "call", direct_call(plan.executables[0]))


class Injection:
    """Raises SIGINT at one of the lines that the body runs, in our packages and in jax.

    Args:
        at: Number of the line, from 0; None only counts them.
        files: Which files count: a part of their names.
        number: Another signal.

    Attributes:
        lines: Lines so far.
    """

    def __init__(
        self,
        at: int | None,
        files: tuple[str, ...] = _FILES,
        number: signal.Signals = signal.SIGINT,
    ) -> None:
        self.at, self.lines, self._files, self._number = at, 0, files, number
        self.where = ""

    def during(self, step: Callable[[int], None], only: int) -> Callable[[int], None]:
        """Steps, of which the lines of one count until the signal has come."""

        def counted(number: int) -> None:
            if number == only and not self.where:
                self.call(lambda: step(number))
            else:
                step(number)

        return counted

    def call(self, function: Callable[[], Any]) -> Any:
        """Call something whose lines count."""
        # A trace function raises on the way out of a context too, where no handler would run.
        state, wide = torch._C._get_torch_function_state(), SETTING()
        # A collection would run callbacks of other tests' weak references, whose lines count too.
        collects = gc.isenabled()
        gc.disable()
        sys.settrace(self._global)
        try:
            return function()
        finally:
            sys.settrace(None)
            if collects:
                gc.enable()
            torch._C._set_torch_function_state(state)
            SET(wide)

    def _global(self, frame: Any, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "/tests/" in name or not any(part in name for part in self._files):
            return None
        return self._local

    def _local(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines - 1 == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(self._number)
        return self._local


@contextmanager
def handler(number: int, function: Any) -> Iterator[None]:
    """A handler for a signal; afterwards it must still be the one that was set."""
    before = signal.signal(number, function)
    try:
        yield
        assert signal.getsignal(number) is function, "a handler was left exchanged"
    finally:
        signal.signal(number, before)


class Storm:
    """Interrupts at random times, while armed.

    Args:
        seed: Of the times.
        longest: Longest time between two, in seconds.
        by_thread: Whether another thread sends SIGINT, or a timer SIGALRM.
    """

    def __init__(self, seed: int, longest: float, *, by_thread: bool) -> None:
        self._random, self._longest, self._by_thread = random.Random(seed), longest, by_thread
        self.armed = False
        self.count = 0
        self._ended = threading.Event()

    def _handle(self, number: int, frame: Any) -> None:
        # The last signal may come when the timer was stopped already: set again, it would go off
        # where no handler is left, and end the process.
        if not self._by_thread and not self._ended.is_set():
            signal.setitimer(signal.ITIMER_REAL, self._pause())
        if self.armed:
            self.armed = False
            self.count += 1
            raise KeyboardInterrupt

    def _pause(self) -> float:
        return self._random.uniform(1e-5, self._longest)

    def _send(self) -> None:
        while not self._ended.wait(self._pause()):
            os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def raging(self) -> Iterator[None]:
        """While active, interrupts come."""
        number = signal.SIGINT if self._by_thread else signal.SIGALRM
        thread = threading.Thread(target=self._send, daemon=True)
        with handler(number, self._handle):
            if self._by_thread:
                thread.start()
            else:
                signal.setitimer(signal.ITIMER_REAL, self._pause())
            try:
                yield
            finally:
                self._ended.set()
                signal.setitimer(signal.ITIMER_REAL, 0)
                if self._by_thread:
                    joined(thread)
