"""Divides the time of steps among XLA's thunks, from what jax's profiler saw.

Time in which several thunks run is divided among them, so that all times add up to the step's.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from emulator.plans.kernel_trace import CONTAINERS, Event, Module, thunks_of

STEP = "bench step"
"""Name of the events around steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What the thunks of a step take.

    Args:
        seconds: Of a step, by instruction: its share of the time in which it runs. They sum up to
            the step's time but for that in which no thunk runs.
        elapsed: The same in full, however many run beside one another.
        calls: How often it runs in a step.
        idle: Seconds of a step in which no thunk runs.
    """

    seconds: Mapping[str, float]
    elapsed: Mapping[str, float]
    calls: Mapping[str, float]
    idle: float


def step_times(events: Iterable[Event], module: Module) -> Times:
    """Divide the time of steps among their thunks.

    Args:
        events: What the profiler saw, of all threads, one ``STEP`` for each step among them.
        module: The module that ran; events of other names are left out.

    Returns:
        Medians over the steps. A loop has the time in which nothing of its body runs.

    Example:
        >>> from emulator.plans.kernel_trace import parsed
        >>> module = parsed('''ENTRY %main (x: f32[]) -> f32[] {
        ...   %x = f32[] parameter(0)
        ...   %c = f32[] convolution(%x, %x)
        ...   ROOT %d = f32[] dot(%x, %x)
        ... }''')
        >>> found = step_times([(STEP, 0.0, 1e9), ("c", 1e8, 2e8), ("end: c", 7e8, 7e8),
        ...     ("d", 3e8, 5e8), ("other", 0.0, 9e8)], module)
        >>> {name: round(s, 3) for name, s in found.seconds.items()}, round(found.idle, 3)
        ({'c': 0.5, 'd': 0.1}, 0.4)
        >>> {name: round(s, 3) for name, s in found.elapsed.items()}
        {'c': 0.6, 'd': 0.2}
        >>> step_times([(STEP, 0.0, 1e9), ("d__onednn$matmul", 3e8, 5e8)], module).calls
        {'d': 1.0}
    """
    steps, ran = _intervals(events, module)
    seconds: list[dict[str, float]] = []
    elapsed: list[dict[str, float]] = []
    calls: defaultdict[str, float] = defaultdict(float)
    idle: list[float] = []
    for begin, finish in steps:
        inside = [(name, start, end) for name, start, end in ran if begin <= start < finish]
        shares = _shares(inside, module)
        seconds.append(shares)
        full: defaultdict[str, float] = defaultdict(float)
        elapsed.append(full)
        for name, start, end in inside:
            full[name] += end - start
            calls[name] += 1
        idle.append(finish - begin - sum(shares.values()))
    return Times(
        seconds=_medians(seconds),
        elapsed=_medians(elapsed),
        calls={name: number / len(steps) for name, number in calls.items()},
        idle=1e-9 * statistics.median(idle),
    )


def _medians(counted: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for step in counted for name in step)
    return {
        name: 1e-9 * statistics.median(step.get(name, 0.0) for step in counted) for name in names
    }


def _intervals(
    events: Iterable[Event], module: Module
) -> tuple[list[tuple[float, float]], list[Event]]:
    """Beginnings and ends of the steps, and of all thunks."""
    seen = list(events)
    steps = sorted((start, end) for name, start, end in seen if name == STEP)
    return steps, thunks_of(seen, module.instructions)


def _shares(ran: Sequence[Event], module: Module) -> dict[str, float]:
    """The time in which thunks run, divided equally among those that run at a time."""
    changes = sorted(
        [(start, 1, name) for name, start, _ in ran] + [(end, 0, name) for name, _, end in ran]
    )
    shares: defaultdict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    before = 0.0
    for at, begins, name in changes:
        if running and at > before:
            leaves = [n for n in running if module.instructions[n].opcode not in CONTAINERS]
            # Of loops within loops the last one that began is the innermost.
            for one in leaves or list(running)[-1:]:
                shares[one] += (at - before) / len(leaves or "1")
        before = at
        if begins:
            running[name] += 1
        elif running[name] > 1:
            running[name] -= 1
        else:
            del running[name]
    return shares
