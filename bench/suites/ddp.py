"""Costs of data parallel: two replicas beside two of torch's, over a slow link, and one alone.

Each of the two replicas is a process with half of the cores, and both sides reduce over gloo. They
train in turns; whose turn it is not waits for a request.

A simulated link makes every reduction longer: a latency, and a bandwidth that is chosen by the step
time. The link's time is slept, so whatever hides it is overlap.

Alone, one side is this project as usual. The other compiles with ``--data-parallel``, so that its
program has REDUCE sections, and runs with ``data_parallel=True``; nobody else is there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.errors import LossesDiffer, StatesDiffer
from bench.measurement import OURS, Results
from bench.models import CASES, OVERLAP
from bench.peers import DDP, REPLICA
from bench.process import Contestant
from bench.replicas import Replicas, first_state, join, link, rank_and_size, train
from bench.suites import Settings, in_turns

MODES = ("normal", "inorder", "optimal")
"""Contenders over a slow link: values of ``data_parallel_mode``."""

FREE = "no link"
"""Stands among the contenders for mode ``normal`` without the simulated link."""

LINK = "link"
"""Stands among the contenders for the simulated link itself."""

LATENCY = 200e-6
"""Seconds that the link adds to each reduction, whatever its size."""

SHARE = 1 / 3
"""What the link adds to a step, relative to a step without it: about half a backward pass."""


def overlap(settings: Settings, results: Results) -> None:
    """Time steps in all modes over a slow link, in turns: what reducing beside other work gains.

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
            one_overlap(case, settings, results)


def one_overlap(case: str, settings: Settings, results: Results) -> None:
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


_SECONDS = 600
"""How long a rank waits for the others."""

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
            beside_torch(case, settings, results)


def beside_torch(case: str, settings: Settings, results: Results) -> None:
    """Measure one case; see :func:`ddp`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Replicas(settings.start, case) as ours,
        Replicas(settings.start, case, DDP) as theirs,
    ):
        ours.ask(join)
        theirs.ask(join_ddp, meeting=f"{folder}/meeting")

        def sample(side: str, count: int) -> tuple[float, list[float]]:
            if side == DDP:
                answers = theirs.ask(train_ddp, count=count)
            else:
                answers = ours.ask(train, mode="normal", count=count)
            losses = [answer["loss"] for answer in answers]
            return max(answer["seconds"] for answer in answers) / count, losses

        check(case, {side: sample(side, CHECKED_STEPS)[1] for side in (REPLICA, DDP)})
        count = settings.steps_in_turn(sample(DDP, 1)[0])
        samplers = {s: lambda side=s: sample(side, count)[0] for s in (REPLICA, DDP)}
        seconds = in_turns(settings.rounds, samplers)
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


def join_ddp(contestant: Contestant, meeting: str) -> dict[str, Any]:
    """Meet the other replicas, and build the model.

    Args:
        contestant: The peer.
        meeting: Path of a file that is not there yet, at which they meet.
    """
    rank, size = rank_and_size()
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_SECONDS),
    )
    _ = contestant.step
    return {}


def train_ddp(contestant: Contestant, count: int) -> dict[str, Any]:
    """Go on training.

    Args:
        contestant: A replica.
        count: Steps.

    Returns:
        ``seconds`` of all steps, and the ``loss`` of the last one.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = contestant.batches(len(contestant.case.batches()))[rank::size]
    loss = 0.0
    dist.barrier()
    begin = time.perf_counter()
    for i in range(count):
        loss = contestant.step(batches[i % len(batches)])
    return {"seconds": time.perf_counter() - begin, "loss": loss}


ALONE_CASES = ("logreg-1", "lenet-32", "res_ffn", "gpt")
"""Small steps, where host time counts, and large ones, where memory does."""

PROCESSES = 3
"""Processes of each side: the place of its memory makes a whole process faster or slower."""


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
            one_alone(case, settings, results)


def one_alone(case: str, settings: Settings, results: Results) -> None:
    """Measure one case; see :func:`alone`."""
    with contextlib.ExitStack() as stack:
        workers = {
            (name, number): stack.enter_context(settings.worker(case, name))
            for number in range(PROCESSES)
            for name in (OURS, REPLICA)
        }
        with ThreadPoolExecutor(settings.threads) as pool:  # nothing is timed yet
            list(pool.map(lambda worker: worker.steps(1), workers.values()))
        took = [worker.warm_up(settings.warm_seconds) for worker in workers.values()]
        count = settings.steps_in_turn(statistics.median(took))
        seconds = in_turns(
            settings.rounds,
            {key: lambda w=worker: w.steps(count)[0] / count for key, worker in workers.items()},
        )
    for name in (OURS, REPLICA):
        of_processes = [seconds[name, number] for number in range(PROCESSES)]
        values = map(statistics.median, zip(*of_processes, strict=True))
        results.add("alone", case, name, "step", "s", values)
