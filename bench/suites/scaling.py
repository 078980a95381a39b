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

    named = f"{case} x{count}"
    settings.tell(f"scaling: {named}")
    with Replicas(settings.start, case, count=count) as replicas:
        replicas.ask("join_predicted")
        for mode in MODES:  # compiled, and every page touched
            seconds("trained", 1, mode=mode)
        steps = max(1, round(settings.round_seconds / seconds("muted", 1)))
        alone: list[float] = []
        of_tasks: list[tuple[tuple[float, ...], ...]] = []
        means: list[float] = []
        spent: list[list[float]] = []
        busy: list[list[float]] = []
        real: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(settings.rounds):
            alone.append(seconds("muted", steps))
            by_rank = [a["seconds"] for a in replicas.ask("tasks", count=steps)]
            means.append(statistics.fmean(sum(map(sum, of)) for of in by_rank) / steps)
            of_tasks += [tuple(zip(*step, strict=True)) for step in zip(*by_rank, strict=True)]
            answers = replicas.ask(
                "reductions", sizes=SIZES, round_seconds=settings.round_seconds / len(SIZES)
            )
            spent.append([max(of) for of in zip(*(a["seconds"] for a in answers), strict=True)])
            busy.append([sum(of) for of in zip(*(a["processor"] for a in answers), strict=True)])
            for mode in MODES:
                real[mode].append(seconds("trained", steps, mode=mode))
        # Tasks that are waited for one by one take longer than those that follow each other.
        whole = statistics.fmean(alone) / statistics.fmean(means)
        times = [statistics.median(of) for of in zip(*spent, strict=True)]
        latency, bandwidth = fitted_ring(SIZES, times, count)
        share = processor_share(times, [statistics.median(of) for of in zip(*busy, strict=True)])
        told: dict[str, float] = {}
        for mode in MODES:
            paces = [pace(of, mode, settings.threads) for of in of_tasks]
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


def pace(seconds: Sequence[Sequence[float]], mode: str, cores: int) -> list[float]:
    """The time of each task of a step until all replicas have done it.

    Args:
        seconds: Of each task, by replica.
        mode: ``data_parallel_mode``.
        cores: Cores of the machine.

    Returns:
        The slowest replica's time where each has a core, or where the next reduction waits for it.
        Else the mean: a replica that has done its task leaves its part of the cores to others.

    Example:
        >>> of_tasks = [(1.0, 3.0), (4.0, 2.0)]
        >>> pace(of_tasks, "normal", 1), pace(of_tasks, "inorder", 1)
        ([3.0, 4.0], [2.0, 3.0])
    """
    slowest = mode == "normal" or len(seconds[0]) <= cores
    return [max(of) if slowest else statistics.fmean(of) for of in seconds]


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
