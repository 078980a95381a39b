"""Simulated steps beside real ones, with 2, 3 and 4 replicas on this machine.

What the simulator is given is measured without a single real step: tasks while all replicas compute
and nobody reduces, and reductions of several sizes while nobody computes. A ring's latency and
bandwidth are fitted to those. All this and the real steps take turns, so that what else goes on
here meets them alike; what the simulator says rests on none of the real ones.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from itertools import pairwise

from bench.measurement import Results
from bench.models import CASES, OVERLAP
from bench.replicas import Replicas
from bench.suites import Settings

COUNTS = (2, 3, 4)
"""Replicas."""

MODES = ("normal", "inorder", "optimal")
"""Values of ``data_parallel_mode``."""

SIZES = tuple(1 << k for k in range(12, 25, 2))
"""Bytes of the reductions to which a link is fitted: 4 KiB to 16 MiB."""

Step = Sequence[Sequence[float]]
"""Seconds of each task of a step, by replica; 0 for reductions."""


def scaling(settings: Settings, results: Results) -> None:
    """Predict steps, then time them.

    Args:
        settings: What to measure. Cases that are timed for themselves too are left out where
            they were not asked for.
        results: Gets ``step`` seconds of each mode, ``simulated`` and as measured, with the number
            of replicas behind the case's name.

    Raises:
        WorkerFailed: If a replica fails.
    """
    for case in OVERLAP:
        if case in settings.cases or case not in CASES:
            for count in COUNTS:
                one_count(case, count, settings, results)


def one_count(case: str, count: int, settings: Settings, results: Results) -> None:
    """Measure one case with so many replicas; see :func:`scaling`."""

    def seconds(what: str, steps: int, **details: str) -> float:
        answers = replicas.ask(what, count=steps, **details)
        return max(answer["seconds"] for answer in answers) / steps

    def one_by_one(steps: int, together: bool) -> list[Step]:
        by_rank = [a["seconds"] for a in replicas.ask("tasks", count=steps, together=together)]
        return [tuple(map(tuple, step)) for step in zip(*by_rank, strict=True)]

    named = f"{case} x{count}"
    settings.tell(f"scaling: {named}")
    with Replicas(settings.start, case, count=count) as replicas:
        replicas.ask("join_predicted")
        for mode in MODES:  # compiled, and every page touched
            seconds("trained", 1, mode=mode)
        steps = max(1, round(settings.round_seconds / seconds("muted", 1)))
        alone: list[float] = []
        apart: list[Step] = []
        together: list[Step] = []
        spent: list[list[float]] = []
        busy: list[list[float]] = []
        real: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(settings.rounds):
            alone.append(seconds("muted", steps))
            apart += one_by_one(steps, together=False)
            together += one_by_one(steps, together=True)
            answers = replicas.ask(
                "reductions", sizes=SIZES, round_seconds=settings.round_seconds / len(SIZES)
            )
            spent.append([max(of) for of in zip(*(a["seconds"] for a in answers), strict=True)])
            busy.append([sum(of) for of in zip(*(a["processor"] for a in answers), strict=True)])
            for mode in MODES:
                real[mode].append(seconds("trained", steps, mode=mode))
        # Tasks that are waited for one by one take longer than those that follow each other.
        whole = statistics.fmean(alone) / statistics.fmean(
            sum(tasks) for step in apart for tasks in step
        )
        times = [statistics.median(of) for of in zip(*spent, strict=True)]
        latency, bandwidth = fitted_ring(SIZES, times, count)
        share = processor_share(times, [statistics.median(of) for of in zip(*busy, strict=True)])
        told: dict[str, float] = {}
        for mode in MODES:
            paces = (
                [pace_together(step) for step in together]
                if mode == "normal"
                else [pace_apart(step, settings.threads) for step in apart]
            )
            told[mode] = replicas.ask(
                "simulated",
                mode=mode,
                tasks=[whole * statistics.fmean(of) for of in zip(*paces, strict=True)],
                latency=latency,
                bandwidth=bandwidth,
                replicas=count,
                share=share,
            )[0]["seconds"]
    note = f"latency {latency:.3g} s, {bandwidth:.3g} B/s, share {share:.2f}"
    for mode in MODES:
        results.add("scaling", named, mode, "simulated", "s", [told[mode]], note=note)
        results.add("scaling", named, mode, "step", "s", real[mode])
        took = statistics.median(real[mode])
        settings.tell(
            f"scaling: {named} {mode}: simulated {told[mode] * 1e3:.1f} ms, "
            f"real {took * 1e3:.1f} ms, {told[mode] / took - 1:+.1%}; "
            f"without reductions {statistics.median(alone) * 1e3:.1f} ms; {note}"
        )


def pace_together(step: Step) -> list[float]:
    """The time of each task where all replicas wait for each other at every reduction.

    Args:
        step: Seconds of each task by replica, 0 for reductions.

    Returns:
        Between two reductions the tasks of the replica that takes longest to the second one.

    Example:
        >>> pace_together([(1.0, 2.0, 0.0, 3.0), (3.0, 1.0, 0.0, 2.0)])
        [3.0, 1.0, 0.0, 3.0]
    """
    times: list[float] = []
    ends = [i for i, task in enumerate(zip(*step, strict=True)) if not any(task)]
    for begin, end in pairwise([0, *ends, len(step[0])]):
        times += max((tasks[begin:end] for tasks in step), key=sum)
    return times


def pace_apart(step: Step, cores: int) -> list[float]:
    """The time of each task where a reduction is waited for as late as can be.

    Args:
        step: Seconds of each task by replica.
        cores: Cores of the machine.

    Returns:
        The slowest replica's time where each has a core. Else the mean: a replica that has done
        its task leaves its part of the cores to others.

    Example:
        >>> step = [(1.0, 4.0), (3.0, 2.0)]
        >>> pace_apart(step, 2), pace_apart(step, 1)
        ([3.0, 4.0], [2.0, 3.0])
    """
    slowest = len(step) <= cores
    return [max(of) if slowest else statistics.fmean(of) for of in zip(*step, strict=True)]


def fitted_ring(
    sizes: Sequence[int], seconds: Sequence[float], replicas: int
) -> tuple[float, float]:
    """The latency and bandwidth of the ring whose all-reduces take these times.

    Args:
        sizes: Bytes of a replica's buffer.
        seconds: Time of an all-reduce of each.
        replicas: How many there are.

    Returns:
        Seconds of a message and bytes a second of a link: those with the least sum of squared
        relative errors, the latency 0 or more.

    Example:
        >>> fitted_ring([1000, 1_000_000], [2 * (1e-4 + 5e-4), 2 * (1e-4 + 0.5)], 2)
        (0.0001, 1000000.0)
    """
    # a + b m = t, each equation divided by its t
    weights = [1 / t for t in seconds]
    a11 = sum(w * w for w in weights)
    a12 = sum(w * w * m for w, m in zip(weights, sizes, strict=True))
    a22 = sum((w * m) ** 2 for w, m in zip(weights, sizes, strict=True))
    b1, b2 = sum(weights), sum(w * m for w, m in zip(weights, sizes, strict=True))
    determinant = a11 * a22 - a12 * a12
    constant, slope = (
        (b1 * a22 - b2 * a12) / determinant,
        (b2 * a11 - b1 * a12) / determinant,
    )
    if constant < 0:
        constant, slope = 0.0, b2 / a22
    rounds = 2 * (replicas - 1)
    return (
        float(f"{constant / rounds:.6g}"),
        float(f"{rounds / (replicas * slope):.6g}"),
    )


def processor_share(seconds: Sequence[float], processor: Sequence[float]) -> float:
    """The part of this machine's processors that reductions keep busy, of the largest size.

    Args:
        seconds: Time of a reduction of each size.
        processor: Time of all processes' processors meanwhile.

    Example:
        >>> processor_share([1.0], [0.0])
        0.0
    """
    return min(1.0, processor[-1] / seconds[-1] / len(os.sched_getaffinity(0)))
