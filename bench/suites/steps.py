"""Training steps of all contenders in turns.

For each case every contender gets a process of its own. They are warmed up and
then take turns, a round of steps each, so that a machine that slows down slows
all of them. The first losses must agree, or the times would compare nothing.
"""

from __future__ import annotations

import contextlib
import math

from bench.errors import LossesDiffer, WorkerFailed
from bench.measurement import OURS, Results
from bench.models import ALL, SMALL
from bench.peers import REFERENCE
from bench.process import Worker
from bench.suites import Settings

CHECKED_LOSSES = 4


def check_losses(case: str, losses: dict[str, list[float]], rtol: float) -> None:
    """Compare the first losses of all contenders with the reference, if that is among them.

    Args:
        case: Name of the case.
        losses: First losses by contender.
        rtol: How far apart they may be, relatively.

    Raises:
        LossesDiffer: If one is further than that from the reference.
    """
    for values in losses.values():
        pairs = zip(values, losses.get(REFERENCE, values), strict=True)
        if not all(math.isclose(a, b, rel_tol=rtol) for a, b in pairs):
            raise LossesDiffer(case=case, losses=losses)


def steps(settings: Settings, results: Results) -> None:
    """Time training steps.

    Args:
        settings: What to measure. A peer that fails is left out with its reason; a failure
            of ours is an error.
        results: Gets ``step`` seconds, a sample a round.

    Raises:
        WorkerFailed: If this project's own worker fails.
        LossesDiffer: If the contenders do not compute the same.
    """
    for case in settings.cases:
        settings.tell(f"steps: {case}")
        _one_case(case, settings, results)


def _one_case(case: str, settings: Settings, results: Results) -> None:
    losses: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in settings.contenders:
            worker = settings.start(case, name)
            stack.callback(worker.close)
            try:
                _, losses[name] = worker.steps(CHECKED_LOSSES)
                step_seconds = worker.warm_up(settings.warm_seconds)
            except WorkerFailed as error:
                if name == OURS:
                    raise
                results.fail("steps", case, name, error.reason)
                continue
            workers[name] = worker
            counts[name] = max(1, round(settings.round_seconds / step_seconds))
            seconds[name] = []
        check_losses(case, losses, (SMALL if settings.small else ALL)[case].loss_rtol)
        turns = list(workers)
        for r in range(settings.rounds if turns else 0):
            # Whoever comes first meets other caches than the rest: let all do so in turn.
            first = r % len(turns)
            for name in turns[first:] + turns[:first]:
                took, _ = workers[name].steps(counts[name])
                seconds[name].append(took / counts[name])
    for name in turns:
        results.add("steps", case, name, "step", "s", seconds[name])
