"""One target tried many times: which cases, what became of them, what is kept."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pef_schema import PefError, read_pef
from tests.fuzz.finds import Finds
from tests.fuzz.pool import Result, Worker, try_all
from tests.pef_schema.fuzz.cases import SHARES, Case

RUN_SHARES = {"sound": 74, "rows": 21, "bytes": 5}
"""Of a hundred programs that are run, how many are of a kind."""

_BATCH = {"reading": 250, "run": 10}
_LIVES = {"reading": 20_000, "run": 150}
_KEPT = 300
"""Files that a corpus holds for each target."""
_NUMBERS = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.e+-]*|\([^()]*\)|\[[^\[\]]*\]")


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What became of the cases of one target.

    Args:
        target: ``reading`` or ``run``.
        folder: Holds ``corpus`` and ``finds``; without one no corpus is kept.
        shares: Of all cases, how many are of a kind, in relation to each other.
        counts: How many cases by kind and label.
        slowest: Most seconds that a case took, and its name.
        peak: Most bytes that a worker had in memory, and the case after which it had them.
    """

    target: str
    folder: Path | None
    shares: Mapping[str, int] = field(default_factory=dict[str, int])
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    slowest: tuple[float, str] = (0.0, "")
    peak: tuple[int, str] = (0, "")
    finds: Finds = field(init=False)
    _seen: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.finds = Finds(self.target, (self.folder or Path("out/fuzz")) / "finds")

    def go(
        self,
        count: int,
        *,
        seed: int = 0,
        workers: int = 2,
        until: float = float("inf"),
        deadline: float = 10.0,
        plant: str = "",
        tell: bool = False,
    ) -> list[str]:
        """Try cases, and write what was found.

        Args:
            count: How many.
            seed: Which ones.
            workers: Processes.
            until: Time (``time.monotonic()``) at which no further ones are begun.
            deadline: Seconds of a hang.
            plant: A fault to put in on purpose.
            tell: Whether to say from time to time how far it is.

        Returns:
            A line for each group of finds.
        """

        def make() -> Worker:
            return Worker(self.target, deadline=deadline, plant=plant)

        batches = _batches(self.names(count, seed), _BATCH[self.target])
        lives = _LIVES[self.target]
        every = max(1, count // 10)

        def take(result: Result) -> None:
            self.take(result)
            if tell and self.counts.total() % every == 0:
                found = sum(map(len, self.finds.groups.values()))
                print(f"{self.target}: {self.counts.total()} of {count}, {found} finds", flush=True)

        try_all(batches, take, make=make, workers=workers, lives=lives, until=until)
        if not self.finds.groups:
            return []
        with closing(make()) as worker:
            return self.finds.write(worker)

    def names(self, count: int, seed: int) -> Iterator[str]:
        """The cases: kinds by their shares, and files of the corpus in between."""
        shares = self.shares or (SHARES if self.target == "reading" else RUN_SHARES)
        kinds = [kind for kind, share in shares.items() for _ in range(share)]
        numbers: Counter[str] = Counter()
        corpus = self._corpus()
        for number in range(count):
            kind = kinds[number * 37 % len(kinds)]
            base = ""
            if corpus and number % 3 == 0 and kind in ("bytes", "rows", "sound", "mixed"):
                base = str(corpus[number // 3 % len(corpus)])
            yield str(Case(kind=kind, seed=seed * 10**7 + numbers[kind], base=base))
            numbers[kind] += 1

    def take(self, result: Result) -> None:
        """Count a result, and keep its file if it is something new."""
        outcome = result.outcome
        kind = Case.parse(result.case).kind
        self.counts[kind, f"find: {outcome.label}" if outcome.find else outcome.label] += 1
        self.slowest = max(self.slowest, (result.seconds, result.case))
        if result.peak > self.peak[0]:
            self.peak = result.peak, result.case
        if outcome.find:
            self.finds.add(result)
        elif self.folder is not None:
            self._keep(result)

    def table(self) -> str:
        """Cases by kind and outcome, as text."""
        labels = sorted({label for _, label in self.counts}, key=lambda x: (x[:5] == "find:", x))
        kinds = sorted({kind for kind, _ in self.counts})
        width = max([len(label) for label in labels] + [10])
        lines = [f"{self.target:{width}}" + "".join(f"{kind:>9}" for kind in [*kinds, "all"])]
        for label in labels:
            row = [self.counts[kind, label] for kind in kinds]
            lines.append(f"{label:{width}}" + "".join(f"{n:9d}" for n in [*row, sum(row)]))
        row = [sum(n for (k, _), n in self.counts.items() if k == kind) for kind in kinds]
        lines.append(f"{'all':{width}}" + "".join(f"{n:9d}" for n in [*row, sum(row)]))
        seconds, name = self.slowest
        lines.append(f"slowest: {seconds:.2f} s ({name})")
        lines.append(f"most memory: {self.peak[0] >> 20} MiB ({self.peak[1]})")
        return "\n".join(lines)

    def _keep(self, result: Result) -> None:
        """Keep an accepted file that holds, or is told, what no other one of its kind does."""
        outcome, case = result.outcome, Case.parse(result.case)
        if case.base or outcome.label.startswith("Pef") or len(self._seen) >= _KEPT:
            return
        way = f"{case.kind} {outcome.label} {_NUMBERS.sub('#', outcome.text)[:200]}"
        if way in self._seen:
            return
        self._seen.add(way)
        folder = self._corpus_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{case.kind}_{case.seed}.pef"
        if not path.exists():
            path.write_bytes(case.build())

    def _corpus_folder(self) -> Path:
        assert self.folder is not None
        return self.folder / "corpus" / self.target

    def _corpus(self) -> list[Path]:
        """The files that are kept and that today's reader still accepts."""
        if self.folder is None:
            return []
        return [path for path in sorted(self._corpus_folder().glob("*.pef")) if _is_read(path)]


def _is_read(path: Path) -> bool:
    try:
        read_pef(path)
    except PefError:
        return False
    return True


def _batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    while batch := list(itertools.islice(names, size)):
        yield batch


def try_ops(cases: Iterable[str], *, workers: int = 1, **how: Any) -> list[Result]:
    """Try calls of operations.

    Args:
        cases: Their names, ``OP:SEED``.
        workers: Processes.
        how: ``until`` as for :func:`try_all`; else as for :class:`Worker`.

    Returns:
        A result for each that was tried.
    """
    found: list[Result] = []
    until = how.pop("until", float("inf"))
    # Compiled code is never given back: a process that lives long grows.
    try_all(
        _batches(iter(cases), 20),
        found.append,
        make=lambda: Worker("op", **how),
        workers=workers,
        lives=400,
        until=until,
    )
    return found
