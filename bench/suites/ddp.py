"""Two replicas on one machine, beside two of torch's DistributedDataParallel.

Each replica is a process with half of the cores, and both sides reduce over gloo. They train in
turns; whose turn it is not waits for a request.
"""

from __future__ import annotations

import tempfile

from bench.errors import LossesDiffer
from bench.measurement import Results
from bench.models import CASES, OVERLAP
from bench.peers import DDP, REPLICA
from bench.replicas import Replicas
from bench.suites import Settings

CHECKED_STEPS = 3
"""Steps from the start whose last loss is compared."""

RTOL = 1e-3
"""Of a loss after those steps: more than rounding makes of it, less than a gradient that is not
averaged, which moves it by several per cent."""


def ddp(settings: Settings, results: Results) -> None:
    """Time steps of both sides in turns.

    Args:
        settings: What to measure. Cases that are timed for themselves too are left out where
            they were not asked for.
        results: Gets ``step`` seconds of both, a sample a round: the slower replica's.

    Raises:
        WorkerFailed: If a replica fails.
        LossesDiffer: If the two sides do not compute the same.
    """
    for case in OVERLAP:
        if case in settings.cases or case not in CASES:
            settings.tell(f"ddp: {case}")
            one_case(case, settings, results)


def one_case(case: str, settings: Settings, results: Results) -> None:
    """Measure one case; see :func:`ddp`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Replicas(settings.start, case) as ours,
        Replicas(settings.start, case, DDP) as theirs,
    ):
        ours.ask("join")
        theirs.ask("join_ddp", meeting=f"{folder}/meeting")

        def sample(side: str, count: int) -> tuple[float, list[float]]:
            if side == DDP:
                answers = theirs.ask("ddp", count=count)
            else:
                answers = ours.ask("overlap", mode="normal", count=count)
            losses = [answer["loss"] for answer in answers]
            return max(answer["seconds"] for answer in answers) / count, losses

        check(case, {side: sample(side, CHECKED_STEPS)[1] for side in (REPLICA, DDP)})
        count = max(1, round(settings.round_seconds / sample(DDP, 1)[0]))
        seconds: dict[str, list[float]] = {REPLICA: [], DDP: []}
        for number in range(settings.rounds):
            for side in (REPLICA, DDP) if number % 2 else (DDP, REPLICA):
                seconds[side].append(sample(side, count)[0])
    for side, values in seconds.items():
        results.add("ddp", case, side, "step", "s", values)


def check(case: str, losses: dict[str, list[float]]) -> None:
    """Make sure that both sides come to the same losses, rank by rank.

    Raises:
        LossesDiffer: If they do not.
    """
    ours, theirs = losses[REPLICA], losses[DDP]
    if not all(abs(a - b) <= RTOL * abs(b) for a, b in zip(ours, theirs, strict=True)):
        raise LossesDiffer(case=case, losses=losses)
