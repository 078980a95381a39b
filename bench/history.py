"""Medians over time, a line of JSON for each run."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.environment import described
from bench.errors import BadResults
from bench.measurement import OURS, Results
from bench.models import STEP_SUITES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run.

    Args:
        time: When it was added, UTC, ISO 8601.
        commit: What was measured.
        processor: On what, in words; entries of two processors belong to two curves.
        seconds: Median step by case.
        ratios: That over the better eager torch, by case.
    """

    time: str
    commit: str
    processor: str
    seconds: dict[str, float]
    ratios: dict[str, float]


def entry(results: Results) -> Entry:
    """Results as a line of history."""
    seconds, ratios = {}, {}
    for suite, case in [(s, c) for s in STEP_SUITES for c in results.cases(s)]:
        ours = results.get(suite, case, OURS, "step")
        if ours is None:
            continue
        seconds[case] = ours.median
        peer = results.best(suite, case, "step", "eager")
        ratio = None if peer is None else results.ratio(suite, case, "step", peer)
        if ratio is not None:
            ratios[case] = ratio.median
    return Entry(
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=str(results.environment.get("commit", "")),
        processor=described(results),
        seconds=seconds,
        ratios=ratios,
    )


def add(path: Path, results: Results) -> None:
    """Append results to a history file; makes it if need be."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(entry(results))) + "\n")


def load(path: Path) -> list[Entry]:
    """Read a history file.

    Raises:
        BadResults: If it cannot be read, or a line is not an entry.
    """
    found = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise BadResults(path=str(path), reason=f"cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            found.append(Entry(**json.loads(line)))
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"not an entry: {error!s:.200}"
            raise BadResults(path=f"{path}:{number}", reason=reason) from error
    return found
