"""A training that is followed: which runs make a step, and what is written of it, and when.

A run is not waited for. Its losses are read when they are there, and rows are written in order.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from emulator.held_signals import HELD
from pef_schema.program import ArginKind, OutputGrad, Program, SectionKind
from samba.abexit import SambaAtexit
from samba.distributed.environment import detect
from samba.distributed.settings import PRESENT
from samba.profiler import PROFILER
from samba.session.step_log import Kind, Row, StepLog
from samba.support.given import flag_of, path_of, whole_of

if TYPE_CHECKING:
    from emulator.device import Device  # loads jax, which a session without a program needs not
    from emulator.plans.steps import StepKey

_TOLD = frozenset({ArginKind.LR, ArginKind.MOMENTUM, ArginKind.WEIGHT_DECAY})
"""Kinds of hyperparameters that a row has."""
_MOST_FACTS = 64

_log = logging.getLogger("samba")

Losses = Mapping[str, Any]
"""What will be the losses of a run, by name: numbers, or arrays of one that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What a selection of steps does.

    Args:
        steps: The steps.
        losses: Names and regions of the losses that they compute.
        backward: Whether they compute gradients.
        update: Whether they update weights.
    """

    steps: StepKey
    losses: tuple[tuple[str, int], ...]
    backward: bool
    update: bool


class _Mean:
    """The mean of the losses of several runs, as far as they are there."""

    __slots__ = ("_sums", "_unread", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self._sums: dict[str, float] = {}
        self._unread: deque[Losses] = deque()

    def add(self, losses: Losses) -> None:
        """Take a run into it."""
        self.runs += 1
        self._unread.append(losses)
        self.read(wait=False)

    def read(self, *, wait: bool) -> bool:
        """Read what is there; whether that is everything."""
        while self._unread:
            losses = self._unread[0]
            if not wait and not all(type(n) is float or n.is_ready() for n in losses.values()):
                return False
            self._unread.popleft()
            try:
                numbers = {name: float(number) for name, number in losses.items()}
            except RuntimeError:  # the run has failed, which the session tells
                self.runs -= 1
                continue
            for name, number in numbers.items():
                self._sums[name] = self._sums.get(name, 0.0) + number
        return True

    def values(self) -> dict[str, float]:
        """The means, once everything is read."""
        return {name: number / self.runs for name, number in self._sums.items()}


@dataclass(slots=True)
class _Course:
    """Where the training of a program stands.

    Args:
        step: Updates that were made.
        ended: When the last row did, as ``time.perf_counter()`` counts; None before the first.
        forward: Losses of a run that a backward pass may follow; None if there is none.
        forward_times: When the last such run was started, as both clocks of the process count.
        trained: Runs since the last update.
        evaluated: Runs that no backward pass has followed.
    """

    step: int
    ended: float | None = None
    forward: Losses | None = None
    forward_times: tuple[float, float] = (0.0, 0.0)
    trained: _Mean = field(default_factory=_Mean)
    evaluated: _Mean = field(default_factory=_Mean)


class Follower:
    """Makes rows of runs.

    Args:
        log: Where they are written.
        step: Updates that the training has behind it; None if it goes on where the files end.
    """

    def __init__(self, log: StepLog, step: int | None = None) -> None:
        self._log, self._step, self._process = log, step, os.getpid()
        self._courses: dict[str, _Course] = {}
        self._facts: dict[int, _Facts] = {}
        self._rows: deque[tuple[Row, _Mean]] = deque()

    def ran(self, device: Device, steps: StepKey) -> None:
        """Take note of a run that was started.

        Args:
            device: What runs it.
            steps: What it runs.
        """
        facts, program = self._facts_of(device.program, steps), device.program
        if not facts.losses and not facts.backward and not facts.update:
            return
        now = time.time(), time.perf_counter()
        with HELD:
            course = self._course(program.name)
            losses = {name: _later(device, region) for name, region in facts.losses}
            if losses and not facts.backward:
                self._add_forward(course, losses, now)
            elif facts.backward:
                if not losses and course.forward is not None:
                    losses, course.forward = course.forward, None
                self._end_evaluation(program.name, course)
                if losses:
                    course.trained.add(losses)
            if facts.update:
                course.step += 1
                mean, course.trained = course.trained, _Mean()
                hyperparameters = {
                    argin.name: device.argin(index)
                    for index, argin in enumerate(program.argins)
                    if argin.kind in _TOLD
                }
                self._end(Kind.TRAIN, program.name, course, mean, now, hyperparameters)
            self._write(wait=False)

    def evaluated(self, program: Program, device: Device, names: Mapping[str, str]) -> None:
        """Take note of a run of an evaluator.

        Args:
            program: The program that is trained.
            device: What has run its evaluation.
            names: The names that losses have there.
        """
        pairs = [(loss, names.get(loss, loss)) for loss, _ in _losses(program)]
        now = time.time(), time.perf_counter()
        with HELD:
            losses = {
                loss: _later(device, device.region_of(name))
                for loss, name in pairs
                if device.knows(name)
            }
            if losses:
                self._add_forward(self._course(program.name), losses, now)
                self._write(wait=False)

    def step_of(self, program: str) -> int:
        """How many updates of a program were made.

        Args:
            program: Its name.
        """
        return self._course(program).step

    def go_on(self, program: str, step: int) -> None:
        """Go on from another step, that of a checkpoint.

        Args:
            program: Name of the program.
            step: Updates that it has behind it.
        """
        self.settle()
        with HELD:
            self._courses[program] = _Course(step)
            self._try(partial(self._log.start, step))

    def settle(self) -> None:
        """Wait for what is under way, and write it."""
        if os.getpid() == self._process:  # a child that was forked has none of it
            with HELD:
                for name, course in self._courses.items():
                    self._end_evaluation(name, course)
                self._write(wait=True)

    def close(self) -> None:
        """Write what is under way, and close the files."""
        if os.getpid() == self._process:
            self.settle()
            self._try(self._log.close)

    def _course(self, name: str) -> _Course:
        course = self._courses.get(name)
        if course is None:
            step = self._log.last.get(name, 0) if self._step is None else self._step
            course = self._courses[name] = _Course(step)
        return course

    def _add_forward(self, course: _Course, losses: Losses, now: tuple[float, float]) -> None:
        if course.forward is not None:
            course.evaluated.add(course.forward)
        course.forward, course.forward_times = losses, now

    def _end_evaluation(self, name: str, course: _Course) -> None:
        if course.forward is not None:
            course.evaluated.add(course.forward)
            course.forward = None
        if course.evaluated.runs:
            mean, course.evaluated = course.evaluated, _Mean()
            self._end(Kind.EVAL, name, course, mean, course.forward_times, {})

    def _end(
        self,
        kind: Kind,
        name: str,
        course: _Course,
        mean: _Mean,
        now: tuple[float, float],
        hyperparameters: Mapping[str, float],
    ) -> None:
        when, clock = now
        row = Row(
            kind=kind,
            program=name,
            step=course.step,
            time=when,
            seconds=None if course.ended is None else clock - course.ended,
            runs=0,
            losses={},
            hyperparameters=hyperparameters,
        )
        self._rows.append((row, mean))
        course.ended = clock

    def _write(self, *, wait: bool) -> None:
        while self._rows and self._rows[0][1].read(wait=wait):
            row, mean = self._rows.popleft()
            row = replace(row, runs=mean.runs, losses=mean.values())
            if _log.isEnabledFor(logging.INFO):
                figures = ", ".join(f"{name} {n:.6g}" for name, n in row.scalars().items())
                _log.info("step %d: %s", row.step, figures)
            self._try(partial(self._log.write, row))

    def _try(self, write: Callable[[], None]) -> None:
        """Write something. A full disk ends no training: it is told, and that is the end of it."""
        try:
            write()
        except OSError as error:
            self._rows.clear()
            PROFILER.follow_by(None)
            _log.warning(
                "%s: this training is no longer recorded: %s",
                self._log.path,
                error.strerror or error,
            )

    def _facts_of(self, program: Program, steps: StepKey) -> _Facts:
        facts = self._facts.get(id(steps))  # to hash thousands of steps would take longer
        if facts is None:
            if len(self._facts) >= _MOST_FACTS:
                self._facts.clear()
            facts = self._facts[id(steps)] = _facts(program, steps)
        return facts


def _losses(program: Program) -> list[tuple[str, int]]:
    """Names and regions of a program's losses."""
    return [
        (output.name, output.region)
        for graph in program.graphs
        for output in graph.outputs
        if output.grad is OutputGrad.ONES
    ]


def _facts(program: Program, steps: StepKey) -> _Facts:
    chosen = [program.sections[section].steps[step] for section, step in steps]
    kinds = {step.kind for step in chosen}
    written = {region for step in chosen for region in step.writes}
    every = {step.kind for section in program.sections for step in section.steps}
    # Without an update on the device, the script makes one after each backward pass.
    update = SectionKind.OPT if SectionKind.OPT in every else SectionKind.BCKWD
    return _Facts(
        steps=steps,
        losses=tuple([loss for loss in _losses(program) if loss[1] in written]),
        backward=SectionKind.BCKWD in kinds,
        update=update in kinds,
    )


def _later(device: Device, region: int) -> Any:
    """The mean of a region: a number, or an array of one that the device has still to compute."""
    buffer: Any = device.pool.buffers[region]
    chips = device.placement.chips
    if chips.count > 1 or isinstance(buffer, np.ndarray) or buffer.is_ready():
        host = np.asarray(buffer) if chips.count == 1 else chips.whole(buffer, "a loss")
        with np.errstate(all="ignore"):  # of infinities
            return float(host.astype(np.float64).mean())
    from emulator.trace_settings import wide_types  # noqa: PLC0415  # loads jax

    with wide_types():  # a copy: the next run takes the memory
        return buffer.mean()


class Following:
    """Whether trainings of this process are followed; a part of the session."""

    _ends: ClassVar[bool] = False
    """Whether what is under way when the process ends is written."""

    @staticmethod
    def follow(
        log_dir: str | PathLike[str], *, step: int | None = None, tensorboard: bool | None = None
    ) -> None:
        """Write losses, hyperparameters and seconds of each step to files, until it is ended.

        ``steps.jsonl`` in the folder gets an object a line, and TensorBoard its events. Runs are
        not waited for. Of several replicas rank 0 alone writes. See ``docs/follow.md``.

        Args:
            log_dir: The folder; what is there is continued. A folder that was followed into
                before is closed first.
            step: Updates that the training has behind it, for one that goes on from a checkpoint;
                None to count on from the last row of the file.
            tensorboard: Whether to write events; None for doing so if TensorBoard is installed.

        Raises:
            BadStepLog: The file cannot be written, or is another one.
            MissingPackage: ``tensorboard`` is True and it is not installed.

        Example:
            >>> import samba, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     samba.session.follow(folder, tensorboard=False)
            ...     samba.session.stop_following()
        """
        folder = fspath(path_of(log_dir, "session.follow(log_dir)"))
        if step is not None:
            step = whole_of(step, "session.follow(step=...)", least=0)
        if tensorboard is not None:
            tensorboard = flag_of(tensorboard, "session.follow(tensorboard=...)")
        Following.stop_following()
        if _rank() > 0:
            return
        log = StepLog(folder, step=step, tensorboard=tensorboard)
        PROFILER.follow_by(Follower(log, step))
        if not Following._ends:
            Following._ends = True
            SambaAtexit.register(Following.stop_following)

    @staticmethod
    def stop_following() -> None:
        """Write what is under way and close the files; nothing happens if nothing is followed."""
        follower = PROFILER.follower
        if follower is not None:
            PROFILER.follow_by(None)
            follower.close()


def _rank() -> int:
    """Which of several replicas this is; launchers tell before these have met."""
    if PRESENT.value is not None:
        return PRESENT.value.rank
    launch = detect()
    return 0 if launch is None else launch.rank
