"""Section times as ``measure-sections --json`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import BadSectionTimes
from bench.stats import Comparison, compare

__all__ = ["are_section_times", "compared", "load_section_times"]

_MILLI = 1e-3


def are_section_times(path: Path) -> bool:
    """Whether a file begins as section times do: the bench's own results are no list."""
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] == b"["
    except OSError:
        return False


def load_section_times(path: Path) -> dict[str, list[float]]:
    """Seconds by section.

    Args:
        path: What ``measure-sections --json`` wrote.

    Raises:
        BadSectionTimes: If it is missing or something else.
    """
    try:
        rows: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise BadSectionTimes(path=str(path), reason=f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadSectionTimes(path=str(path), reason=f"not JSON: {error!s:.200}") from error
    try:
        found = {str(row["name"]): [float(t) * _MILLI for t in row["samples_ms"]] for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        reason = f"a row without {error!s:.100}" if isinstance(error, KeyError) else "no rows"
        raise BadSectionTimes(path=str(path), reason=reason) from error
    if not found or not all(times and min(times) > 0 for times in found.values()):
        raise BadSectionTimes(path=str(path), reason="a section without times")
    return found


def compared(base: Path, head: Path) -> tuple[list[Comparison], list[str]]:
    """Compare the times of two files, section by section.

    Args:
        base, head: What ``measure-sections --json`` wrote.

    Returns:
        Comparisons of the sections that both have, and lines about the others.

    Raises:
        BadSectionTimes: If one is missing or something else.
    """
    before, after = load_section_times(base), load_section_times(head)
    found = [compare(name, before[name], after[name]) for name in after if name in before]
    lines = [f"{name}: only in head" for name in after if name not in before]
    lines += [f"{name}: only in base" for name in before if name not in after]
    return found, lines
