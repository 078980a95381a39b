"""The results of a benchmark: a flat list of measurements, each with all of its samples.

Every suite gives the same kind of thing, so that tables, comparison, pages and exports
are written once. Results say where they were measured: processor, versions, state of the code.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.errors import BadResults, TwoProcessors
from bench.output import read_json, write_json
from emulator.processor import Processor, processor

FORMAT = 3
"""Version of the JSON layout."""

OURS = "ours"
"""Name of this project among the contenders."""

SELECTIONS = ("suites", "cases", "contenders")
"""Settings that say which part of the bench was run, each a list of names."""

FULL = "(full schedule)"
"""Stands among the sections for the whole schedule, as a run of it is compiled."""

ALLOC = "+alloc"
"""Ends the name of a peer that runs with this project's allocator settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, quartiles and extremes of some numbers."""

    median: float
    low: float
    high: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one number.

        Example:
            >>> Spread.of([3.0, 1.0, 2.0])
            Spread(median=2.0, low=1.5, high=2.5, least=1.0, most=3.0)
        """
        if len(values) == 1:
            low = high = values[0]
        else:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(
            median=statistics.median(values),
            low=low,
            high=high,
            least=min(values),
            most=max(values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Samples of one quantity.

    Args:
        suite: Name of the suite: ``steps``, ``sections``, ``compile``, ``memory``,
            ``host``, ``limit``, ``overlap``, ``alone``, ``ddp``, ``unseen``, ``ordinary`` or
            ``thunks``.
        case: Name of the case, empty where there is none.
        contender: Whose it is.
        what: Which quantity of the suite.
        unit: ``s``, ``B``, ``B/s``, ``flop/s``, ``flop`` or ``plans``.
        values: Samples in the order they were taken. Contenders that were timed in turns
            have the same number, and samples of one place belong together.
        note: More about it in words, if anything.
    """

    suite: str
    case: str
    contender: str
    what: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies it in a set of results."""
        return self.suite, self.case, self.contender, self.what

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A contender that did not run, and why."""

    suite: str
    case: str
    contender: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Results:
    """All that one benchmark found.

    Example:
        >>> results = Results()
        >>> results.add("steps", "lenet", "ours", "step", "s", [1.0, 2.0, 3.0])
        >>> results.add("steps", "lenet", "eager", "step", "s", [2.0, 2.0, 2.0])
        >>> results.ratio("steps", "lenet", "step", "eager").median
        1.0
    """

    measurements: list[Measurement] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        suite: str,
        case: str,
        contender: str,
        what: str,
        unit: str,
        values: Iterable[float],
        *,
        note: str = "",
    ) -> None:
        """Add one measurement."""
        self.measurements.append(
            Measurement(
                suite=suite,
                case=case,
                contender=contender,
                what=what,
                unit=unit,
                values=tuple(values),
                note=note,
            )
        )

    def fail(self, suite: str, case: str, contender: str, reason: str) -> None:
        """Note that a contender did not run."""
        self.failures.append(Failure(suite=suite, case=case, contender=contender, reason=reason))

    def select(
        self, suite: str, case: str | None = None, what: str | None = None
    ) -> Iterator[Measurement]:
        """Measurements of a suite, of one case or quantity only where given."""
        for m in self.measurements:
            if m.suite == suite and case in (None, m.case) and what in (None, m.what):
                yield m

    def get(self, suite: str, case: str, contender: str, what: str) -> Measurement | None:
        """One measurement, None if there is none."""
        for m in self.select(suite, case, what):
            if m.contender == contender:
                return m
        return None

    def cases(self, suite: str) -> list[str]:
        """Cases of a suite in the order they were measured."""
        return list(dict.fromkeys(m.case for m in self.select(suite)))

    def ratio(
        self, suite: str, case: str, what: str, peer: str, contender: str = OURS
    ) -> Spread | None:
        """Our samples over a peer's, sample by sample; below 1 we need less.

        Returns:
            The ratios' spread; of the medians alone where the numbers of samples differ; None
            where either is missing.
        """
        ours = self.get(suite, case, contender, what)
        theirs = self.get(suite, case, peer, what)
        if ours is None or theirs is None:
            return None
        if len(ours.values) != len(theirs.values):
            return Spread.of([ours.median / theirs.median])
        return Spread.of([a / b for a, b in zip(ours.values, theirs.values, strict=True)])

    def best(self, suite: str, case: str, what: str, *peers: str) -> str | None:
        """The best of peers as they come and with our allocator settings, None if none ran.

        Example:
            >>> results = Results()
            >>> results.add("steps", "lenet", "eager", "step", "s", [3.0])
            >>> results.add("steps", "lenet", "compile+alloc", "step", "s", [2.0])
            >>> results.best("steps", "lenet", "step", "eager", "compile")
            'compile+alloc'
        """
        candidates = [
            m for m in self.select(suite, case, what) if m.contender.removesuffix(ALLOC) in peers
        ]
        return min(candidates, key=lambda m: m.median).contender if candidates else None

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "format": FORMAT,
            "environment": self.environment,
            "settings": self.settings,
            "measurements": [asdict(m) for m in self.measurements],
            "failures": [asdict(f) for f in self.failures],
        }

    def save(self, path: Path) -> None:
        """Write everything to a JSON file.

        Raises:
            PefUnwritable: If it cannot be written; what was there is as it was.
        """
        write_json(path, self.to_json())


def from_json(data: Any, *, where: str) -> Results:
    """Results from what :meth:`Results.to_json` gave.

    Args:
        data: The JSON object.
        where: Where it comes from, for errors.

    Raises:
        BadResults: If it is not of this format.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise BadResults(path=where, reason=f"found format {got!r}, expected {FORMAT}")
    try:
        results = Results(
            measurements=[
                Measurement(**{**m, "values": tuple(m["values"])}) for m in data["measurements"]
            ],
            failures=[Failure(**f) for f in data["failures"]],
            environment=data["environment"],
            settings=data["settings"],
        )
        good = all(isinstance(x, dict) for x in (results.environment, results.settings))
        good &= all(isinstance(x, (int, float)) for m in results.measurements for x in m.values)
        selections = [results.settings.get(part, []) for part in SELECTIONS]
        good &= all(isinstance(x, list) and all(isinstance(n, str) for n in x) for x in selections)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResults(path=where, reason=f"not a whole result: {error!r:.200}") from error
    if not good:
        raise BadResults(path=where, reason="not a whole result: values or settings of other types")
    return results


def load(path: Path) -> Results:
    """Read results that :meth:`Results.save` wrote.

    Raises:
        BadResults: If the file is missing or not such results.
    """
    return from_json(read_json(path, BadResults), where=str(path))


def environment(threads: int) -> dict[str, Any]:
    """What the numbers depend on: processor, versions and the state of the code."""
    here = processor()
    return {
        "processor": {**asdict(here), "isa": list(here.isa)},
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "jax", "jaxlib", "numpy")},
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that was timed, with a plus if files were changed; empty outside git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def processor_of(results: Results, *, where: str = "results") -> Processor | None:
    """The processor that results were measured on.

    Args:
        results: The results.
        where: Where they come from, for errors.

    Returns:
        The processor; None where they say nothing of where they come from.

    Raises:
        BadResults: If what they say of it is something else.
    """
    data = results.environment.get("processor")
    if data is None:
        return None
    try:
        of = Processor(**{**data, "isa": tuple(data["isa"])})
    except (TypeError, KeyError) as error:
        raise BadResults(path=where, reason=f"no processor: {error!s:.200}") from error
    texts, numbers = (of.vendor, of.name, *of.isa), (of.family, of.model, of.stepping)
    if not all(type(t) is str for t in texts) or not all(type(n) is int for n in numbers):
        raise BadResults(path=where, reason="no processor: its fields have other types")
    return of


def check_one_processor(base: Results, head: Results, names: tuple[str, str]) -> None:
    """Make sure that two sets of results are of one processor.

    Args:
        base, head: The results.
        names: Where they come from.

    Raises:
        TwoProcessors: If they are not.
    """
    processors = [processor_of(r, where=name) for r, name in zip((base, head), names, strict=True)]
    if processors[0] != processors[1]:
        raise TwoProcessors(names=names, processors=(described(base), described(head)))


def described(results: Results) -> str:
    """The processor of results in words."""
    measured_on = processor_of(results)
    return "a processor that is not named" if measured_on is None else str(measured_on)


def heading(results: Results) -> str:
    """A line about where results come from: it stands over every table.

    Example:
        >>> heading(Results())
        'processor: a processor that is not named'
    """
    e = results.environment
    parts = [f"processor: {described(results)}"]
    if "threads" in e:
        parts.append(f"{e['threads']} threads")
    parts += [f"{k} {v}" for k, v in dict(e.get("versions", {})).items()]
    if e.get("commit"):
        parts.append(f"commit {e['commit']}")
    return ", ".join(parts)
