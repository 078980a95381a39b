"""Where a plan is cut: layers that are equal, in ranges of operations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.plans.linked.runs import Run, runs_of
from emulator.plans.linked.uses import Uses
from emulator.plans.traced.operations import bytes_of, seconds_of

__all__ = ["LEAST_SECONDS", "Layers", "layers_of"]

LEAST_SECONDS = 4e-3
"""What several parts share takes at least this long, by an estimate: a call of an executable takes
up to 200 microseconds of the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Ranges of operations that follow one another and are likely to be equal.

    Args:
        start: Place of the first operation.
        size: Operations of each.
        count: How many there are.
        together: How many take long enough for a call of an executable.
    """

    start: int
    size: int
    count: int
    together: int


def layers_of(
    eqns: Sequence[Any], forms: Sequence[Hashable], weights: Sequence[int], uses: Uses, least: int
) -> list[Layers]:
    """Find equal layers.

    Args:
        eqns: The operations of a plan in the order in which they run.
        forms: Of each, equal where two differ in the values they read and make alone.
        weights: What each costs to compile.
        uses: Who reads what they make.
        least: Layers are left out that together spare less than this.

    Returns:
        Those that fill two executables or more, in order.
    """
    found: list[Layers] = []
    for run in runs_of(forms, weights, least):
        first = run.start + _phase(run, uses)
        count = (run.start + run.covered - first) // run.period
        seconds = seconds_of(eqns[first : first + run.period])
        together = math.ceil(LEAST_SECONDS / max(seconds, 1e-9))
        if count >= 2 * together:
            found.append(Layers(start=first, size=run.period, count=count, together=together))
    return found


def _phase(run: Run, uses: Uses) -> int:
    """The place in a layer at which a cut is crossed by the fewest bytes."""
    period = run.period
    middle = run.start + (run.covered // period - 1) // 2 * period
    changes: Mapping[int, int] = _crossings(uses, middle, period)
    total, best, least = 0, 0, None
    for offset in range(min(period, run.covered - period)):
        total += changes.get(offset, 0)
        if least is None or total < least:
            best, least = offset, total
    return best


def _crossings(uses: Uses, middle: int, period: int) -> dict[int, int]:
    """How the bytes that a range of one period takes and gives change with its offset."""
    changes: dict[int, int] = {}

    def count(low: int, high: int, size: int) -> None:
        """Ranges that begin from ``low`` to ``high`` have something of a size cross."""
        low, high = max(low, middle), min(high, middle + period - 1)
        if low <= high:
            changes[low - middle] = changes.get(low - middle, 0) + size
            changes[high - middle + 1] = changes.get(high - middle + 1, 0) - size

    for v, made in uses.made.items():
        readers = uses.read.get(v)
        if not readers or made >= middle + 2 * period or readers[-1] < middle:
            continue
        size = bytes_of([v])
        count(made - period + 1, min(made, readers[-1] - period), size)
        until = made
        for reader in readers:
            count(max(until + 1, reader - period + 1), reader, size)
            until = max(until, reader)
    return changes
