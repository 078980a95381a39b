"""What a benchmark found, as numbers, as a table and as JSON."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers import OURS

FORMAT = 1
"""Version of the JSON layout."""


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

    def to_json(self) -> dict[str, float]:
        """Return the fields as a dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderResult:
    """Seconds per step of one contender, one number per round of ``steps`` steps."""

    name: str
    steps: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All contenders on one case; ``failed`` holds names and reasons of those that did not run."""

    name: str
    contenders: tuple[ContenderResult, ...]
    failed: tuple[tuple[str, str], ...] = ()

    def ratios(self) -> dict[str, Spread]:
        """Return our time divided by each peer's, round by round; below 1 we are faster."""
        ours = next((c for c in self.contenders if c.name == OURS), None)
        if ours is None:
            return {}
        return {
            peer.name: Spread.of([a / b for a, b in zip(ours.seconds, peer.seconds, strict=True)])
            for peer in self.contenders
            if peer is not ours
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything, times in milliseconds."""
        return {
            "contenders": {
                c.name: {
                    "steps_per_round": c.steps,
                    "ms": Spread.of([1e3 * s for s in c.seconds]).to_json(),
                    "rounds_ms": [1e3 * s for s in c.seconds],
                }
                for c in self.contenders
            },
            "ours_over_peer": {name: r.to_json() for name, r in self.ratios().items()},
            "failed": dict(self.failed),
        }


def table(results: Sequence[CaseResult]) -> str:
    """Return a table for people.

    Example:
        >>> ours = ContenderResult(name="ours", steps=9, seconds=(0.001, 0.001))
        >>> eager = ContenderResult(name="eager", steps=9, seconds=(0.002, 0.002))
        >>> print(table([CaseResult(name="lenet", contenders=(ours, eager))]))
        case       contender  median ms   quartiles            ours/peer
        lenet      ours          1.0000   1.0000 -    1.0000
        lenet      eager         2.0000   2.0000 -    2.0000       0.500
    """
    lines = [f"{'case':10} {'contender':10} {'median ms':>9}   {'quartiles':20} {'ours/peer':>9}"]
    for result in results:
        ratios = result.ratios()
        for c in result.contenders:
            ms = Spread.of([1e3 * s for s in c.seconds])
            ratio = f"{ratios[c.name].median:11.3f}" if c.name in ratios else ""
            lines.append(
                f"{result.name:10} {c.name:10} {ms.median:9.4f}"
                f"   {ms.low:.4f} - {ms.high:9.4f} {ratio}".rstrip()
            )
        lines += [f"{result.name:10} {name:10} failed: {why}" for name, why in result.failed]
    return "\n".join(lines)


def environment(threads: int) -> dict[str, Any]:
    """Return what the numbers depend on: processor, versions and the state of the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "jax", "jaxlib", "numpy")},
        "commit": _commit(),
    }


def _processor() -> str:
    """Return the processor's name as the system knows it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    """Return the commit that was timed, with a plus if files were changed; empty outside git."""
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


def to_json(
    results: Sequence[CaseResult], *, threads: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return a whole benchmark as a JSON object."""
    return {
        "format": FORMAT,
        "environment": environment(threads),
        "settings": settings,
        "cases": {result.name: result.to_json() for result in results},
    }
