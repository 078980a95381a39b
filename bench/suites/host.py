"""Host time of ``session.run`` beside the executable, against the number of regions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.measurement import OURS, Results
from bench.models import HOST
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
            worker.ask("steps", count=50)
            found = worker.ask("host", count=100 * settings.rounds)
        beside = [a - b for a, b in zip(found["total"], found["executable"], strict=True)]
        results.add("host", str(found["regions"]), OURS, HOST_TIME, "s", beside)
        results.add("host", str(found["regions"]), OURS, WHOLE, "s", found["total"])


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
