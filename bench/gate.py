"""A gate on section times: base against head, in one job, in turns, and asked twice.

Each side runs in several processes, because memory that happens to lie well or badly makes a
whole process faster or slower. All processes of both sides take turns, one sample of every
section at a time. What may be slower is measured again, in twice as many fresh processes; what is
slower by all samples together, and not by those of one question alone, fails the gate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import UnknownSection
from bench.measurement import OURS
from bench.process import Worker
from bench.stats import Comparison, compare

GATED = ("logreg-64", "lenet-32", "res_ffn", "lstm")
"""Cases the gate takes unless told otherwise: steps of some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """How the gate measures.

    Args:
        processes: Processes of each side; twice as many where the gate asks again.
        rounds: Samples of every section in each process.
        threads: Processor cores of a process.
        small: Whether to take the small forms of cases.
        plants: Factors by which sections of head are made slower: to see the gate work.
    """

    processes: int = 3
    rounds: int = 12
    threads: int = 2
    small: bool = False
    plants: Mapping[str, float]


Samples = dict[str, tuple[list[float], list[float]]]
"""Seconds of base and of head by quantity."""

Measure = Callable[[str, int], Samples]
"""Measures a case once, in so many fresh processes of each side."""

AGAIN = 2
"""So many times as many processes measure what is asked again: it decides, and it is rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate found on a case.

    Args:
        case: The case.
        first: Comparisons of the first run.
        second: Comparisons of the second run, of what may be slower; empty if nothing may.
        together: Comparisons of the samples of both runs, of the same.
    """

    case: str
    first: tuple[Comparison, ...]
    second: tuple[Comparison, ...]
    together: tuple[Comparison, ...]

    @property
    def slower(self) -> tuple[str, ...]:
        """What is slower for certain: by all samples, and the second run says nothing else."""
        return tuple(
            both.name
            for both, again in zip(self.together, self.second, strict=True)
            if both.slower and again.suspect
        )

    def fields(self) -> dict[str, Any]:
        """All of it as values for JSON."""
        return {**asdict(self), "slower": list(self.slower)}

    def smaller_is_better(self) -> list[dict[str, Any]]:
        """Head's times as entries of github-action-benchmark's ``customSmallerIsBetter``."""
        return [
            {
                "name": f"{self.case} / {c.name}",
                "unit": "s",
                "value": c.head,
                "extra": f"{c.ratio:.3f} of base",
            }
            for c in self.first
        ]

    def __str__(self) -> str:
        lines = [f"{self.case}: {'SLOWER' if self.slower else 'good'}"]
        lines += [f"  {c}" for c in self.first]
        if self.second:
            lines += ["  asked again:", *(f"  {c}" for c in self.second)]
            lines += ["  all samples:", *(f"  {c}" for c in self.together)]
        return "\n".join(lines)


def decide(case: str, measure: Measure, processes: int) -> Verdict:
    """Measure a case and, if anything may be slower, once more.

    Args:
        case: Name of the case.
        measure: How.
        processes: Processes of each side in the first run.

    Returns:
        The verdict.
    """
    samples = measure(case, processes)
    first = tuple(compare(name, *both) for name, both in samples.items())
    suspects = [c.name for c in first if c.suspect]
    second, together = [], []
    if suspects:
        again = measure(case, AGAIN * processes)
        for name in suspects:
            (base, head), (base_again, head_again) = samples[name], again[name]
            second.append(compare(name, base_again, head_again))
            together.append(compare(name, [*base, *base_again], [*head, *head_again]))
    return Verdict(case=case, first=first, second=tuple(second), together=tuple(together))


def measure_pair(
    case: str, base: Path, head: Path, settings: GateSettings, processes: int | None = None
) -> Samples:
    """Time every section and the full schedule of a case on both sides, in turns.

    Args:
        case: Name of the case.
        base, head: Folders that the sides run in, see ``bench.tree``.
        settings: How.
        processes: Processes of each side; those of the settings if None.

    Returns:
        Samples of what both sides have.

    Raises:
        WorkerFailed: If a side cannot run.
        UnknownSection: If a slowdown is to be planted where there is no section.
    """
    found: tuple[dict[str, list[float]], dict[str, list[float]]] = {}, {}
    with contextlib.ExitStack() as stack:
        workers: list[tuple[int, Worker]] = []
        for side, tree in (*enumerate((base, head)),) * (processes or settings.processes):
            worker = Worker(
                case=case,
                contender=OURS,
                threads=settings.threads,
                small=settings.small,
                environ=_cache_of(tree),
                tree=tree,
            )
            stack.callback(worker.close)
            workers.append((side, worker))
        with ThreadPoolExecutor(settings.threads) as pool:
            names = list(pool.map(lambda w: list(w[1].ask("sections", count=0)), workers))
        unknown = set(settings.plants) - set(names[-1])
        if unknown:
            raise UnknownSection(section=min(unknown), known=names[-1])
        for r in range(settings.rounds):
            # Neither side may always come first.
            for side, worker in workers if r % 2 else workers[::-1]:
                plants = settings.plants if side else {}
                answer = worker.ask("sections", count=1, plants=plants)
                for name, seconds in answer.items():
                    found[side].setdefault(name, []).extend(seconds)
    both = [name for name in found[1] if name in found[0]]
    return {name: (found[0][name], found[1][name]) for name in both}


def measure_in(base: Path, head: Path, settings: GateSettings) -> Measure:
    """What measures a case in these two folders."""
    return lambda case, processes: measure_pair(case, base, head, settings, processes)


def _cache_of(tree: Path) -> dict[str, str]:
    """Environment with which the processes of a side compile once: only times of runs matter."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tree.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def gate_times(
    cases: Sequence[str], base: Path, head: Path, settings: GateSettings
) -> list[Verdict]:
    """Decide on every case."""
    return [decide(case, measure_in(base, head, settings), settings.processes) for case in cases]
