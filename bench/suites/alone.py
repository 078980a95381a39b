"""Costs of data parallel for a process that is alone: world size 1 with ``data_parallel=True``.

One side is this project as usual. The other compiles with ``--data-parallel``, so that its program
has REDUCE sections, and runs with ``data_parallel=True``; nobody else is there.
"""

from __future__ import annotations

import contextlib
import statistics
from concurrent.futures import ThreadPoolExecutor

from bench.measurement import OURS, Results
from bench.peers import REPLICA
from bench.suites import Settings

ALONE_CASES = ("logreg-1", "lenet-32", "res_ffn", "gpt")
"""Small steps, where host time counts, and large ones, where memory does."""

PROCESSES = 3
"""Of each side: memory that happens to lie well makes a whole process faster."""


def alone(settings: Settings, results: Results) -> None:
    """Time steps of both sides in turns.

    Args:
        settings: What to measure.
        results: Gets ``step`` seconds of both, a sample a round: the median of the processes.

    Raises:
        WorkerFailed: If a process fails.
    """
    for case in ALONE_CASES:
        if case in settings.cases:
            settings.tell(f"alone: {case}")
            one_case(case, settings, results)


def one_case(case: str, settings: Settings, results: Results) -> None:
    """Measure one case; see :func:`alone`."""
    seconds: dict[str, list[float]] = {OURS: [], REPLICA: []}
    with contextlib.ExitStack() as stack:
        workers = [
            (name, stack.enter_context(settings.worker(case, name)))
            for _ in range(PROCESSES)
            for name in seconds
        ]
        with ThreadPoolExecutor(settings.threads) as pool:  # nothing is timed yet
            list(pool.map(lambda of: of[1].steps(1), workers))
        took = [worker.warm_up(settings.warm_seconds) for _, worker in workers]
        count = max(1, round(settings.round_seconds / statistics.median(took)))
        for r in range(settings.rounds):
            found: dict[str, list[float]] = {name: [] for name in seconds}
            # Neither side may always come first.
            for name, worker in workers if r % 2 else workers[::-1]:
                found[name].append(worker.steps(count)[0] / count)
            for name, values in found.items():
                seconds[name].append(statistics.median(values))
    for name, values in seconds.items():
        results.add("alone", case, name, "step", "s", values)
