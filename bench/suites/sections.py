"""Times of sections, each an executable of its own, and of the full schedule as one or in parts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bench.measurement import FULL, OURS, Results
from bench.models import CASES, DEEP
from bench.peers.ours import all_steps, loaded
from bench.process import Contestant, seconds_of
from bench.suites import Settings
from emulator.device import Device
from pef_schema import Role, read_pef
from pef_schema.program import ArginKind, OutputGrad

if TYPE_CHECKING:
    from emulator.plans.plan import Plan

SUM = "(sum of sections)"
"""Stands among the sections for all of them, one after the other."""

WHOLE = "(full schedule, one executable)"
"""Stands beside ``FULL`` where that is several executables, one for each form of equal layers."""

LONG_ENOUGH = 0.002
"""Seconds a try should last, so that the clock and the dispatch weigh little."""

TRIES = 3
"""The best of so many is a sample: what interrupts one try seldom interrupts all."""


def sections(settings: Settings, results: Results) -> None:
    """Time every section by itself, their sum, and the full schedule as one executable."""
    for case in settings.cases:
        if case not in CASES:
            continue  # their thunks say more
        settings.tell(f"sections: {case}")
        with settings.worker(case, OURS) as worker:
            worker.ask(section_seconds, count=1)
            times: dict[str, list[float]] = worker.ask(section_seconds, count=settings.rounds)
        full = times.pop(FULL)
        for name, seconds in times.items():
            results.add("sections", case, OURS, name, "s", seconds)
        results.add("sections", case, OURS, SUM, "s", map(sum, zip(*times.values(), strict=True)))
        results.add("sections", case, OURS, FULL, "s", full)
    if not settings.quick:
        settings.tell(f"sections: {DEEP}, in parts and as one executable")
        with settings.worker(DEEP, OURS) as worker:
            for what, seconds in worker.ask(seconds_in_parts, count=settings.rounds).items():
                results.add("sections", DEEP, OURS, what, "s", seconds)


class PlanTimer:
    """Runs plans on a device, one at a time.

    The first pass is in the order of the plans and fills the activations, which stay: afterwards
    any of them can run at any time. Learning rates are 0, so that weights stay where they are
    however often the optimizer's sections run.

    Args:
        device: A loaded device with inputs and weights in place.
        plans: The plans by name, in an order in which they can run.
    """

    def __init__(self, device: Device, plans: Mapping[str, Plan]) -> None:
        self._device = device
        self.plants: dict[str, float] = {}
        for index, argin in enumerate(device.program.argins):
            if argin.kind is ArginKind.LR:
                device.set_argin(index, 0.0)
        self._plans = dict(plans)
        for name in self._plans:
            self._once(name)
        self._repeats = {name: self._calibrate(name) for name in self._plans}

    @property
    def names(self) -> list[str]:
        """Names of the plans in their order."""
        return list(self._plans)

    def sample(self, name: str) -> float:
        """Seconds of one run of a plan: the best try, each of enough repeats."""
        repeats = self._repeats[name]

        def attempt() -> None:
            for _ in range(repeats):
                self._once(name)

        return min(seconds_of(attempt) for _ in range(TRIES)) / repeats

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
        took = min(seconds_of(lambda: self._once(name)) for _ in range(3))
        return max(1, round(LONG_ENOUGH / took))


_DRAWN = frozenset({Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
_SCALE = 0.05
"""Standard deviation of what is drawn; squares of it are far from subnormal numbers."""


class PefContestant:
    """A user's PEF on a device, filled with drawn numbers when it is first asked for.

    No model and no data are needed: times of sections do not depend on what numbers are in inputs,
    weights and states, as long as none is subnormal and every index is in range. They are the same
    for the same PEF.

    Args:
        path: The PEF.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def loaded_device(self) -> Device:
        """A device with the PEF, on which every section can run.

        Raises:
            PefError: If the file is missing or bad.
            DeviceError: If its program cannot be run.
        """
        program = read_pef(self.path)
        device, rng = Device(program), np.random.default_rng(0)
        for region, (role, segment) in enumerate((r.role, r.segment) for r in program.regions):
            if role not in _DRAWN or segment >= 0:
                continue
            shape, dtype = device.buffer_map.form(region)
            if dtype.kind in "iub":
                values = rng.integers(0, 2, shape)
            else:
                # Above zero: running variances and second moments are.
                values = np.abs(rng.standard_normal(shape)) * _SCALE + _SCALE
            device.write(region, np.asarray(values).astype(dtype))
        for graph in program.graphs:
            for output in graph.outputs:
                if output.grad_region >= 0 and output.grad is not OutputGrad.ONES:
                    shape, dtype = device.buffer_map.form(output.grad_region)
                    device.write(output.grad_region, np.full(shape, _SCALE).astype(dtype))
        return device


def _section_plans(device: Device) -> dict[str, Plan]:
    """The plan of each section in the order of the schedule, and last that of the full schedule."""
    plans: dict[str, Plan] = {}
    for call in device.program.schedules[0].calls:
        section = device.program.sections[call.section]
        steps = tuple((call.section, k) for k in range(len(section.steps)))
        plans[section.name] = device.plan(steps)
    plans[FULL] = device.plan(all_steps(device.program))
    return plans


_timers: dict[int, PlanTimer] = {}


def section_seconds(
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
            device = _device_after_a_step(contestant)
        else:
            device = contestant.loaded_device()
        timer = _timers[id(contestant)] = PlanTimer(device, _section_plans(device))
    timer.plants = dict(plants or {})
    return _in_turns(timer, count)


def seconds_in_parts(contestant: Contestant, count: int) -> dict[str, Any]:
    """Time the full schedule whose equal layers share executables, and as one executable, in turns.

    Args:
        contestant: This project, on a case with many equal layers.
        count: Samples of each.

    Returns:
        Lists of seconds by ``FULL`` and ``WHOLE``; only those of ``FULL`` if the schedule has no
        parts.
    """
    device = _device_after_a_step(contestant)
    steps = all_steps(device.program)
    plans = {FULL: device.plan(steps)}
    if len(plans[FULL].executables) > 1:
        plans[WHOLE] = device.plan(steps, whole=True)
    return _in_turns(PlanTimer(device, plans), count)


def _device_after_a_step(contestant: Contestant) -> Device:
    step = contestant.step
    for batch in contestant.batches(1):
        step(batch)
    return loaded().device


def _in_turns(timer: PlanTimer, count: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in timer.names}
    for _ in range(count):
        for name in timer.names:
            times[name].append(timer.sample(name))
    return times
