"""A gate on section times: base against head, in one job, in turns, and asked twice.

Each side runs in several processes, because memory that happens to lie well or badly makes a
whole process faster or slower. All processes of both sides take turns, one sample of every
section at a time. What may be slower is asked again, in two groups of fresh processes, and in four
more if that leaves it open; what is slower by all of them together fails the gate. Workers run in
folders of their own, with this harness over the code of a revision.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import NoRevision, UnknownSection
from bench.measurement import OURS
from bench.output import write_json
from bench.process import Worker
from bench.stats import Comparison, compare_pairs, compare_processes
from bench.suites.sections import section_seconds
from emulator.processor import processor

ROOT = Path(__file__).parents[1]
"""The repository."""

PACKAGES = ("samba", "sambaflow", "pef_schema", "emulator")
"""What is measured; the harness itself is always this one, so that both sides are asked alike."""


@contextlib.contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """A folder to run workers in.

    Args:
        revision: A commit, branch or tag; None for the files as they are now.

    Yields:
        A temporary folder of links: ``bench`` to this harness, the packages to the revision's,
        which is checked out in a temporary git worktree.

    Raises:
        NoRevision: If git cannot check it out.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        source = ROOT
        if revision is not None:
            source = folder / "checkout"
            _git(revision, "worktree", "add", "--quiet", "--detach", str(source), revision)
            stack.callback(_git, revision, "worktree", "remove", "--force", str(source))
        links = folder / "links"
        links.mkdir()
        (links / "bench").symlink_to(ROOT / "bench")
        for name in PACKAGES:
            (links / name).symlink_to(source / name)
        yield links


def file_at(revision: str, path: str) -> str | None:
    """Text of a file of the repository at a revision, None if there is none."""
    done = subprocess.run(
        ["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else None


def _git(revision: str, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["git failed"]
        raise NoRevision(f"revision {revision!r}: {said[-1]}; name a commit, branch or tag")


GATED = ("logreg-64", "lenet-32", "res_ffn", "lstm")
"""Cases the gate takes unless told otherwise: steps of some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """How the gate measures.

    Args:
        processes: Processes of each side in a group: the first question has one, see ``AGAIN``.
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
"""Seconds of base and of head by quantity, those of a process after those of the one before; those
of one place were taken one after the other."""

Measure = Callable[[str, int], Samples]
"""Measures a case once, in so many fresh processes of each side."""

AGAIN = (2, 4)
"""So many groups of fresh processes are asked again, and more if that leaves it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate found on a case.

    Args:
        case: The case.
        first: Comparisons of the first question.
        together: Comparisons of all samples, of what may be slower; empty if nothing may.
        faster: What is faster by what the processes of the first question say.
        processes: Processes of each side that were asked in all.
    """

    case: str
    first: tuple[Comparison, ...]
    together: tuple[Comparison, ...]
    faster: tuple[str, ...]
    processes: int

    @property
    def slower(self) -> tuple[str, ...]:
        """What is slower for certain: by what all processes together say."""
        return tuple(both.name for both in self.together if both.slower)

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
        words = dict.fromkeys(self.faster, "faster")
        words |= {both.name: "asked again" for both in self.together}
        lines += [f"  {c.line(words.get(c.name, ''))}" for c in self.first]
        if self.together:
            lines.append(f"  asked again, all {self.processes} processes of each side:")
            lines += [f"  {c}" for c in self.together]
        return "\n".join(lines)


def decide(case: str, measure: Measure, processes: int) -> Verdict:
    """Measure a case; what may be slower is asked again, until it is clear or asked often enough.

    Args:
        case: Name of the case.
        measure: The function that measures it.
        processes: Processes of each side in a group.

    Returns:
        The verdict.
    """
    samples = measure(case, processes)
    first = tuple(compare_pairs(name, *both) for name, both in samples.items())
    # Samples of one process are not witnesses of their own, whatever the rank test makes of them.
    faster = tuple(
        c.name
        for c in first
        if c.faster
        and processes > 1
        and compare_processes(c.name, *samples[c.name], processes).faster
    )
    open_ones = [c.name for c in first if c.suspect]
    comparisons: dict[str, Comparison] = {}
    total = processes
    for times in AGAIN:
        if not open_ones:
            break
        for _ in range(times):  # one group after the other: each process holds the program
            for name, (base, head) in measure(case, processes).items():
                if name in samples:
                    samples[name] = [*samples[name][0], *base], [*samples[name][1], *head]
        total += times * processes
        comparisons |= {name: compare_processes(name, *samples[name], total) for name in open_ones}
        unclear = [c for c in comparisons.values() if c.suspect and not c.slower]
        open_ones = [c.name for c in unclear if c.name in open_ones]
    return Verdict(
        case=case, first=first, together=tuple(comparisons.values()), faster=faster, processes=total
    )


def write_verdicts(args: Namespace, verdicts: Sequence[Verdict], **more: object) -> None:
    """Write the files of verdicts that were asked for.

    Args:
        args: What was parsed: the files ``json`` and ``smaller_is_better``, each a path or None.
        verdicts: The verdicts.
        more: What else the first of them tells, as values for JSON.
    """
    if args.json is not None:
        cases = [verdict.fields() for verdict in verdicts]
        write_json(args.json, {"processor": str(processor()), **more, "cases": cases})
    if args.smaller_is_better is not None:
        entries = [entry for verdict in verdicts for entry in verdict.smaller_is_better()]
        write_json(args.smaller_is_better, entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side measures.

    Args:
        case: Name of the case, or of a user's PEF, see ``bench.process.case_of``.
        tree: Folder that its processes run in, see :func:`tree_of`.
    """

    case: str
    tree: Path


def measure_sides(
    sides: tuple[Side, Side], settings: GateSettings, processes: int | None = None
) -> Samples:
    """Time every section and the full schedule of both sides, in turns.

    Args:
        sides: Base and head.
        settings: The settings of the measurement.
        processes: Processes of each side; those of the settings if None.

    Returns:
        Samples of what both sides have.

    Raises:
        WorkerFailed: If a side cannot run.
        UnknownSection: If a slowdown is to be planted where there is no section.
    """
    times: list[dict[str, list[float]]] = []
    with contextlib.ExitStack() as stack:
        workers: list[tuple[int, Worker]] = []
        for number, side in (*enumerate(sides),) * (processes or settings.processes):
            worker = Worker(
                case=side.case,
                contender=OURS,
                threads=settings.threads,
                small=settings.small,
                environ=_cache_of(side.tree),
                tree=side.tree,
            )
            stack.callback(worker.close)
            workers.append((number, worker))
            times.append({})
        with ThreadPoolExecutor(settings.threads) as pool:
            names = list(pool.map(lambda w: list(w[1].ask(section_seconds, count=0)), workers))
        unknown = set(settings.plants) - set(names[-1])
        if unknown:
            known = ", ".join(names[-1])
            raise UnknownSection(f"--plant: no section {min(unknown)!r}; there are {known}")
        for r in range(settings.rounds):
            # Neither side may always come first.
            turns = list(enumerate(workers))
            for place, (number, worker) in turns if r % 2 else turns[::-1]:
                plants = settings.plants if number else {}
                answer = worker.ask(section_seconds, count=1, plants=plants)
                for name, seconds in answer.items():
                    times[place].setdefault(name, []).extend(seconds)
    base_of, head_of = times[::2], times[1::2]
    return {
        name: (
            [seconds for process in base_of for seconds in process[name]],
            [seconds for process in head_of for seconds in process[name]],
        )
        for name in head_of[0]
        if name in base_of[0]
    }


def measure_in(base: Path, head: Path, settings: GateSettings) -> Measure:
    """What measures a case in these two folders."""

    def measure(case: str, processes: int) -> Samples:
        sides = Side(case=case, tree=base), Side(case=case, tree=head)
        return measure_sides(sides, settings, processes)

    return measure


def _cache_of(tree: Path) -> dict[str, str]:
    """Environment with which the processes of a side compile once: only times of runs matter."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tree.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
