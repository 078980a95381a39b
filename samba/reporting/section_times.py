"""Times of sections from files: ``measure-sections --json``, or a timeline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pef_schema.errors import SambaError, quoted
from samba.support.strict_json import NotJson, parse_json

__all__ = ["BadTimes", "section_seconds"]

_LARGEST = 1 << 28
"""Bytes of a file of times."""
_TRACK = "sections"


class BadTimes(SambaError):
    """A file does not hold times of sections.

    Args:
        path: The file.
        problem: What was found and what was wanted, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{quoted(path, 1024)}: {problem} measure-sections --json FILE writes such times."
        )


def section_seconds(path: str, known: set[str]) -> dict[str, float]:
    """The median time of a call by the section's name.

    Args:
        path: What ``measure-sections --json`` wrote, or a Chrome trace whose events of the track
            ``sections`` carry the section's name.
        known: Names of the program's sections.

    Returns:
        Seconds by name; sections that the file does not have are missing.

    Raises:
        BadTimes: If the file is missing, something else, or of another program.
    """
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise BadTimes(path=path, problem=f"it has over {_LARGEST:,} bytes.")
        found = parse_json(Path(path).read_bytes())
    except OSError as error:
        raise BadTimes(path=path, problem=f"it cannot be read: {error.strerror}.") from None
    except NotJson as error:
        raise BadTimes(path=path, problem=f"it cannot be read: {error}.") from None
    times = _of_rows(found) if isinstance(found, list) else _of_trace(found)
    if not times:
        raise BadTimes(path=path, problem="it holds no times of sections.")
    named = {name: seconds for name, seconds in times.items() if name in known}
    if not named:
        raise BadTimes(
            path=path, problem="none of its sections is of this PEF: it is of another program."
        )
    return named


def _of_rows(rows: list[Any]) -> dict[str, float]:
    return {
        row["name"]: row["median_ms"] / 1e3
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and _is_time(row.get("median_ms"))
    }


def _of_trace(trace: Any) -> dict[str, float]:
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    spent: dict[str, list[float]] = {}
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") != _TRACK:
            continue
        if isinstance(event.get("name"), str) and _is_time(event.get("dur")):
            spent.setdefault(event["name"], []).append(event["dur"] / 1e6)
    return {name: sorted(times)[len(times) // 2] for name, times in spent.items()}


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0
