"""Host time of ``session.run`` beside the executable, against the number of regions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bench.measurement import OURS, Results
from bench.models import HOST
from bench.peers.ours import all_steps, loaded
from bench.process import Contestant
from bench.suites import Settings

HOST_TIME = "host time beside the executable"
WHOLE = "session.run"


def host(settings: Settings, results: Results) -> None:
    """Time steps of programs with more and more regions.

    The case of each measurement is the number of regions.
    """
    settings.tell("host")
    for case in HOST:
        with settings.worker(case, OURS) as worker:
            worker.steps(50)
            result = worker.ask(host_seconds, count=100 * settings.rounds)
        beside = [a - b for a, b in zip(result["total"], result["executable"], strict=True)]
        results.add("host", str(result["regions"]), OURS, HOST_TIME, "s", beside)
        results.add("host", str(result["regions"]), OURS, WHOLE, "s", result["total"])


def line(results: Results) -> tuple[float, float] | None:
    """Host time with ten regions, and of each further one, by a straight line.

    Returns:
        Seconds and seconds a region; None unless two sizes were measured.

    Example:
        >>> found = Results()
        >>> for n in (10, 20, 40):
        ...     found.add("host", str(n), "ours", HOST_TIME, "s", [3.0 + 2.0 * (n - 10)])
        >>> [round(t, 9) for t in line(found)]
        [3.0, 2.0]
    """
    measured = list(results.select("host", what=HOST_TIME))
    if len(measured) < 2:
        return None
    regions: Sequence[float] = [float(m.case) for m in measured]
    slope, start = statistics.linear_regression(regions, [m.median for m in measured])
    return start + 10 * slope, slope


class _Watched:
    """A plan's executable that notes how long it is called and waited for."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.seconds = 0.0

    def __call__(self, *arrays: Any) -> Any:
        start = time.perf_counter()
        results = jax.block_until_ready(self._call(*arrays))
        self.seconds += time.perf_counter() - start
        return results


def host_seconds(contestant: Contestant, count: int) -> dict[str, Any]:
    """Time steps, and within them the executable with its dispatch and its result.

    Args:
        contestant: This project.
        count: Steps, each with inputs from the host and the loss to the host.

    Returns:
        ``total`` and ``executable``: seconds of each step; ``regions``: memory regions that the
        executable takes or gives.
    """
    step = contestant.step
    for batch in contestant.batches(3):
        step(batch)
    device = loaded().device
    plan = device.plan(all_steps(device.program))
    watched = _Watched(plan.call)
    # The plan is frozen for everyone else; what it calls is replaced while the harness watches.
    object.__setattr__(plan, "call", watched)
    total, executable = [], []
    try:
        for batch in contestant.batches(count):
            watched.seconds = 0.0
            start = time.perf_counter()
            step(batch)
            total.append(time.perf_counter() - start)
            executable.append(watched.seconds)
    finally:
        object.__setattr__(plan, "call", watched._call)
    if not all(executable):
        raise RuntimeError("session.run did not call the plan that was watched")
    regions = len(set(plan.reads) | set(plan.writes))
    return {"total": total, "executable": executable, "regions": regions}
