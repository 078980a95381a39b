"""Stretches of operations that follow one another and are equal: layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Run", "runs_of"]

_CANDIDATES = 64
"""Distances between equal operations that are tried, the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Operations that repeat.

    Args:
        start: Place of the first one.
        period: After how many operations they repeat.
        covered: How many operations there are in all, perhaps with a part of a period at the end.
    """

    start: int
    period: int
    covered: int


def runs_of(forms: Sequence[Hashable], weights: Sequence[int], least: int) -> list[Run]:
    """Find runs of equal stretches, the heaviest first within each range.

    Args:
        forms: Of operations: two that may stand for each other have equal ones.
        weights: What each operation costs to compile.
        least: Runs are left out that spare less than this.

    Returns:
        Runs that do not overlap, by their place.

    Example:
        >>> runs_of("xabcabcabcy", [1] * 11, least=2)
        [Run(start=1, period=3, covered=9)]
    """
    numbers: dict[Hashable, int] = {}
    found = np.array([numbers.setdefault(form, len(numbers)) for form in forms], dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(np.asarray(weights, dtype=np.int64))])
    return sorted(_runs(found, total, 0, len(found), least), key=lambda run: run.start)


def _runs(forms: Any, total: Any, start: int, stop: int, least: int) -> Iterator[Run]:
    pending = [(start, stop)]
    while pending:
        start, stop = pending.pop()
        best = _best(forms[start:stop], total[start : stop + 1])
        if best is None or best[0] < least:
            continue
        _, at, period, covered = best
        run = Run(start=start + at, period=period, covered=covered)
        yield run
        pending += [(start, run.start), (run.start + covered, stop)]


def _best(forms: Any, total: Any) -> tuple[int, int, int, int] | None:
    """What is spared most, and with which place, period and length."""
    best: tuple[int, int, int, int] | None = None
    for period in _periods(forms):
        equal = np.flatnonzero(
            np.diff(np.concatenate([[0], forms[period:] == forms[:-period], [0]]))
        )
        for at, end in zip(equal[::2].tolist(), equal[1::2].tolist(), strict=True):
            if end - at < period:
                continue
            spared = int(total[end + period] - total[at + period])
            if best is None or spared > best[0]:
                best = spared, at, period, end - at + period
    return best


def _periods(forms: Any) -> list[int]:
    """The most frequent distances from an operation to the next equal one, the smaller first."""
    order = np.argsort(forms, kind="stable")
    same = forms[order][1:] == forms[order][:-1]
    distances = np.diff(order)[same]
    counted: Counter[int] = Counter(distances.tolist())
    frequent = sorted(counted, key=lambda d: (-counted[d], d))[:_CANDIDATES]
    return sorted(d for d in frequent if 0 < d <= math.ceil(len(forms) / 2))
