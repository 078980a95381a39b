"""Times of sections, each an executable of its own, and of the full schedule as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

import samba
from bench.inside import Contestant
from bench.measurement import FULL
from pef_schema.program import ArginKind

if TYPE_CHECKING:
    from bench.users.program import PefContestant
    from emulator.device import Device
    from emulator.plans.plan import Plan
    from pef_schema.program import Program
    from samba.session.loaded import Loaded

LONG_ENOUGH = 0.002
"""Seconds a try should last, so that the clock and the dispatch weigh little."""

TRIES = 3
"""The best of so many is a sample: what interrupts one try seldom interrupts all."""


def device_of_session() -> Device:
    """The device of the global session; the harness looks inside on purpose."""
    return loaded_program().device


def loaded_program() -> Loaded:
    """What the global session has loaded; its name depends on the revision that is measured."""
    session = samba.session
    need = getattr(session, "need_loaded", None) or session._need  # pyright: ignore[reportAttributeAccessIssue]  # of older revisions
    return need("bench")


def all_steps(program: Program) -> tuple[tuple[int, int], ...]:
    """The section and step of everything that a full run does, in order.

    The emulator has such a function, but not of the same name in every revision that is measured.
    """
    return tuple(
        (call.section, k)
        for call in program.schedules[0].calls
        for k in range(len(program.sections[call.section].steps))
    )


class SectionTimer:
    """Runs single sections on a device.

    The first pass is in the schedule's order and fills the activations, which stay: afterwards
    any section can run at any time. Learning rates are 0, so that weights stay where they are
    however often the optimizer's sections run.

    Args:
        device: A loaded device with inputs and weights in place.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.plants: dict[str, float] = {}
        program = device.program
        for index, argin in enumerate(program.argins):
            if argin.kind is ArginKind.LR:
                device.set_argin(index, 0.0)
        self._plans: dict[str, Plan] = {}
        for call in program.schedules[0].calls:
            section = program.sections[call.section]
            steps = tuple((call.section, k) for k in range(len(section.steps)))
            self._plans[section.name] = device.plan(steps)
            self._once(section.name)
        self._plans[FULL] = device.plan(all_steps(program))
        self._repeats = {name: self._calibrate(name) for name in self._plans}

    @property
    def names(self) -> list[str]:
        """Names of the sections in the order of the schedule, the full one last."""
        return list(self._plans)

    def sample(self, name: str) -> float:
        """Seconds of one run of a section: the best try, each of enough repeats."""
        repeats = self._repeats[name]

        def attempt() -> None:
            for _ in range(repeats):
                self._once(name)

        return min(_timed(attempt) for _ in range(TRIES)) / repeats

    def _once(self, name: str) -> None:
        begin = time.perf_counter()
        plan = self._plans[name]
        self._device.run(plan)
        buffers = self._device.pool.buffers
        jax.block_until_ready([buffers[home] for home in plan.writes])
        factor = self.plants.get(name)
        if factor:
            until = begin + factor * (time.perf_counter() - begin)
            while time.perf_counter() < until:
                pass

    def _calibrate(self, name: str) -> int:
        took = min(_timed(lambda: self._once(name)) for _ in range(3))
        return max(1, round(LONG_ENOUGH / took))


def _timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


_timers: dict[int, SectionTimer] = {}


def sections(
    contestant: Contestant | PefContestant, count: int, plants: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Time every section, in turns.

    Args:
        contestant: This project, on a case or on a user's PEF.
        count: Samples of each; 0 only prepares.
        plants: Factors by which sections are made slower, by really spending the time.

    Returns:
        Lists of seconds by section name, the full schedule as ``FULL`` among them.
    """
    timer = _timers.get(id(contestant))
    if timer is None:
        if isinstance(contestant, Contestant):
            step = contestant.step
            for batch in contestant.batches(1):
                step(batch)
            device = device_of_session()
        else:
            device = contestant.loaded_device()
        timer = _timers[id(contestant)] = SectionTimer(device)
    timer.plants = dict(plants or {})
    found: dict[str, list[float]] = {name: [] for name in timer.names}
    for _ in range(count):
        for name in timer.names:
            found[name].append(timer.sample(name))
    return found
