"""Section times that are kept: in a report of ``measure-sections``, or in a kept base."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BadSectionTimes, TimesOfTwoProcessors
from bench.stats import Comparison, compare
from bench.users.base_file import kept_times

__all__ = ["SectionTimes", "are_section_times", "compared", "load_section_times"]

_MILLI = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTimes:
    """Times of a program's sections.

    Args:
        seconds: Samples by section.
        processor: What they were taken on, in words; empty where the file does not say.
    """

    seconds: Mapping[str, Sequence[float]]
    processor: str = ""


def are_section_times(path: Path) -> bool:
    """Whether a file is a kept base, or a list as section times are: the bench's results are none.

    Args:
        path: The file.
    """
    try:
        with path.open("rb") as file:
            if file.read(64).lstrip()[:1] == b"[":
                return True
    except OSError:
        return False
    return kept_times(path) is not None


def load_section_times(path: Path) -> SectionTimes:
    """Read section times.

    Args:
        path: A report of ``measure-sections``, or a kept base.

    Returns:
        The times.

    Raises:
        BadSectionTimes: If it is missing or something else.
        BadBase: If it is a damaged base.
    """
    kept = kept_times(path)
    if kept is not None:
        return SectionTimes(processor=kept[0], seconds=kept[1])
    try:
        rows: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise BadSectionTimes(path=str(path), reason=f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadSectionTimes(path=str(path), reason=f"not JSON: {error!s:.200}") from error
    if not isinstance(rows, list):
        raise BadSectionTimes(path=str(path), reason="it is no list of sections")
    try:
        found = {str(row["name"]): [float(t) * _MILLI for t in row["samples_ms"]] for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        reason = f"a row without {error!s:.100}" if isinstance(error, KeyError) else "no rows"
        raise BadSectionTimes(path=str(path), reason=reason) from error
    if not found or not all(times and all(map(_is_time, times)) for times in found.values()):
        raise BadSectionTimes(path=str(path), reason="a section without times")
    return SectionTimes(seconds=found)


def _is_time(seconds: float) -> bool:
    return seconds > 0 and math.isfinite(seconds)


def compared(
    base: Path, head: Path, *, across_processors: bool = False
) -> tuple[list[Comparison], list[str]]:
    """Compare the times of two files, section by section.

    Args:
        base, head: A report of ``measure-sections``, or kept bases.
        across_processors: Whether they may be of two processors.

    Returns:
        Comparisons of the sections that both have, and lines about the others.

    Raises:
        BadSectionTimes: If one is missing or something else, or they have no section in common.
        TimesOfTwoProcessors: If they are, and may not.
    """
    before, after = load_section_times(base), load_section_times(head)
    names = before.processor, after.processor
    if all(names) and names[0] != names[1] and not across_processors:
        raise TimesOfTwoProcessors(names=(str(base), str(head)), processors=names)
    old, new = before.seconds, after.seconds
    found = [compare(name, old[name], new[name]) for name in new if name in old]
    if not found:
        raise BadSectionTimes(path=str(head), reason=f"it has no section of {base}")
    lines = [f"{name}: only in head" for name in new if name not in old]
    lines += [f"{name}: only in base" for name in old if name not in new]
    return found, lines
