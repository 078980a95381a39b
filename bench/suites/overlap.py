"""Gain of reducing gradients while the device goes on.

Two replicas, each a process with half of the cores, train over gloo. A simulated link makes every
reduction longer: a latency, and a bandwidth that is chosen by the step time. The link's time is
slept, so whatever hides it is overlap.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from bench.errors import StatesDiffer
from bench.measurement import Results
from bench.models import CASES, OVERLAP
from bench.peers import REPLICA
from bench.suites import Settings

MODES = ("normal", "inorder", "optimal")
"""Contenders of this suite: values of ``data_parallel_mode``."""

FREE = "no link"
"""Stands among the contenders for mode ``normal`` without the simulated link."""

LINK = "link"
"""Stands among the contenders for the simulated link itself."""

REPLICAS = 2

LATENCY = 200e-6
"""Seconds that the link adds to each reduction, whatever its size."""

SHARE = 1 / 3
"""What the link adds to a step, relative to a step without it: about half a backward pass."""


class Replicas:
    """Workers that are asked all at once.

    Args:
        settings: How they are started.
        case: The case.
        contender: Whose they are.
    """

    def __init__(self, settings: Settings, case: str, contender: str = REPLICA) -> None:
        self._workers = [
            settings.start(case, contender, environ=_environment(rank)) for rank in range(REPLICAS)
        ]
        self._pool = ThreadPoolExecutor(REPLICAS)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()  # whoever is still asked has an answer then
        self._pool.shutdown()

    def ask(self, what: str, **details: Any) -> list[dict[str, Any]]:
        """Send all the same request; returns their answers by rank.

        Raises:
            WorkerFailed: If one of them ended instead of answering.
        """
        asked = [self._pool.submit(worker.ask, what, **details) for worker in self._workers]
        return [future.result() for future in asked]


def _environment(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(REPLICAS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(REPLICAS),
        "MASTER_ADDR": "",  # they are on one host, and meet through their common parent
        "MASTER_PORT": "",
    }


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
        answers = replicas.ask("overlap", mode=mode, count=count)
        return max(answer["seconds"] for answer in answers) / count

    with Replicas(settings, case) as replicas:
        sizes: Sequence[int] = replicas.ask("join")[0]["bytes"]
        check_states(case, replicas)
        count = max(1, round(settings.round_seconds / sample(MODES[0], 1)))
        seconds: dict[str, list[float]] = {name: [] for name in (FREE, *MODES)}
        for _ in range(settings.rounds):
            seconds[FREE].append(sample(MODES[0], count))
        wanted = SHARE * statistics.median(seconds[FREE])
        travelling = wanted - LATENCY * len(sizes)
        rate = sum(sizes) / travelling if travelling > 0 else None
        took = replicas.ask("link", latency=LATENCY, bytes_per_second=rate)[0]["seconds"]
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
        for rank, answer in enumerate(replicas.ask("overlap_state", mode=mode))
    }
    if len(set(states.values())) > 1:
        raise StatesDiffer(case=case, states=states)
