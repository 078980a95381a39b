"""What is known of an operator and dtype after it was tried, and the file that keeps it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


class Outcome(enum.StrEnum):
    """How a forward or a backward pass went."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"
    """A SambaError at compile time says what is missing."""
    FAILED = "failed"
    """A wrong value, dtype or shape, or a crash."""
    RANDOM = "random"
    """Torch itself gives other values every time; dtypes and shapes are right."""
    NONE = "none"
    """Torch has nothing to compare with: no sample that it runs, or no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome for one entry and dtype.

    Args:
        entry: Name of the entry.
        dtype: Name of the dtype.
        forward, gradient: Outcomes; the worst over all samples.
        reason: Why not passed: the first sample's text.
        error: Class of the error, empty for a wrong value.
        samples: How many samples were run.
        structures: How many programs they needed.
        seconds: Wall-clock time.
    """

    entry: str
    dtype: str
    forward: Outcome
    gradient: Outcome
    reason: str = ""
    error: str = ""
    samples: int = 0
    structures: int = 0
    seconds: float = 0.0


_RANK = (Outcome.NONE, Outcome.PASSED, Outcome.RANDOM, Outcome.UNSUPPORTED, Outcome.FAILED)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of several outcomes; ``NONE`` if there are none."""
    return max(outcomes, key=_RANK.index, default=Outcome.NONE)


def to_line(record: Record) -> str:
    """A record as one line of JSON."""
    return json.dumps(asdict(record))


def from_line(line: str) -> Record:
    """The record of a line."""
    fields = json.loads(line)
    fields |= {name: Outcome(fields[name]) for name in ("forward", "gradient")}
    return Record(**fields)


def read_records(path: Path) -> dict[tuple[str, str], Record]:
    """Records of a file by entry and dtype; the last one counts. A torn last line is ignored."""
    records: dict[tuple[str, str], Record] = {}
    if not path.exists():
        return records
    for line in path.read_text().splitlines():
        try:
            record = from_line(line)
        except json.JSONDecodeError:
            continue
        records[record.entry, record.dtype] = record
    return records
