"""Gain of reducing gradients while the device goes on.

Two replicas, each a process with half of the cores, train over gloo. A simulated link makes every
reduction longer: a latency, and a bandwidth that is chosen by the step time. The link's time is
slept, so whatever hides it is overlap.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from bench.errors import StatesDiffer
from bench.measurement import Results
from bench.models import CASES, OVERLAP
from bench.replicas import Replicas, first_state, join, link, train
from bench.suites import Settings

MODES = ("normal", "inorder", "optimal")
"""Contenders of this suite: values of ``data_parallel_mode``."""

FREE = "no link"
"""Stands among the contenders for mode ``normal`` without the simulated link."""

LINK = "link"
"""Stands among the contenders for the simulated link itself."""

LATENCY = 200e-6
"""Seconds that the link adds to each reduction, whatever its size."""

SHARE = 1 / 3
"""What the link adds to a step, relative to a step without it: about half a backward pass."""


def overlap(settings: Settings, results: Results) -> None:
    """Time steps in all modes over a slow link, in turns.

    Args:
        settings: What to measure. Cases that are timed for themselves too are left out where
            they were not asked for.
        results: Gets ``step`` seconds of each mode, and ``reductions``: the seconds that the
            link adds to a step.

    Raises:
        WorkerFailed: If a replica fails.
        StatesDiffer: If replicas or modes do not come to the same weights, bit by bit.
    """
    for case in OVERLAP:
        if case in settings.cases or case not in CASES:
            settings.tell(f"overlap: {case}")
            one_case(case, settings, results)


def one_case(case: str, settings: Settings, results: Results) -> None:
    """Measure one case; see :func:`overlap`."""

    def sample(mode: str, count: int) -> float:
        answers = replicas.ask(train, mode=mode, count=count)
        return max(answer["seconds"] for answer in answers) / count

    with Replicas(settings.start, case) as replicas:
        sizes: Sequence[int] = replicas.ask(join)[0]["bytes"]
        check_states(case, replicas)
        count = settings.steps_in_turn(sample(MODES[0], 1))
        seconds: dict[str, list[float]] = {name: [] for name in (FREE, *MODES)}
        for _ in range(settings.rounds):
            seconds[FREE].append(sample(MODES[0], count))
        wanted = SHARE * statistics.median(seconds[FREE])
        travelling = wanted - LATENCY * len(sizes)
        rate = sum(sizes) / travelling if travelling > 0 else None
        took = replicas.ask(link, latency=LATENCY, bytes_per_second=rate)[0]["seconds"]
        orders = itertools.cycle(itertools.permutations(MODES))
        for order in itertools.islice(orders, settings.rounds):  # each comes after each other one
            for mode in order:
                seconds[mode].append(sample(mode, count))
        check_states(case, replicas)
    for name, values in seconds.items():
        results.add("overlap", case, name, "step", "s", values)
    results.add("overlap", case, LINK, "reductions", "s", [took])


def check_states(case: str, replicas: Replicas) -> None:
    """Make sure that all modes and all replicas come to the same weights and states.

    Raises:
        StatesDiffer: If they do not.
    """
    states = {
        f"{mode}, rank {rank}": answer["state"]
        for mode in MODES
        for rank, answer in enumerate(replicas.ask(first_state, mode=mode))
    }
    if len(set(states.values())) > 1:
        shown = "; ".join(f"{name}: {state[:12]}" for name, state in states.items())
        raise StatesDiffer(
            f"replicas of {case} differ after the same steps: {shown}. All modes and all "
            "replicas must hold the same bits; this is a bug"
        )
