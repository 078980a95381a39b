"""Where a plan is cut: stretches of operations that follow one another and are equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from emulator.plans.traced import bytes_of, compiled_operations, seconds_of, variables


class Uses:
    """Which operations make and read the values of a plan.

    Args:
        eqns: Its operations in the order in which they run.
        results: What it gives.

    Attributes:
        made: Operations by the value that they make.
        read: Operations that read a value, in order; the number of operations for a result.
    """

    def __init__(self, eqns: Sequence[Any], results: Sequence[Any]) -> None:
        self.made: dict[Any, int] = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
        self.read: dict[Any, list[int]] = {}
        for i, eqn in enumerate(eqns):
            self._note(eqn.invars, i)
        self._note(results, len(eqns))

    def _note(self, atoms: Sequence[Any], reader: int) -> None:
        for v in dict.fromkeys(variables(atoms)):
            self.read.setdefault(v, []).append(reader)


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


def in_two(eqns: Sequence[Any], start: int, stop: int, uses: Uses) -> tuple[list[int], list[int]]:
    """Operations of a range for which later ones wait, and the others.

    Args:
        eqns: The operations of a plan.
        start, stop: The range.
        uses: Who reads what.

    Returns:
        The places of both.
    """
    end = len(eqns)
    waited: set[Any] = set()
    first: list[int] = []
    rest: list[int] = []
    for i in range(stop - 1, start - 1, -1):
        outs = eqns[i].outvars
        if not waited.isdisjoint(outs) or any(
            stop <= reader < end for v in outs for reader in uses.read.get(v, ())
        ):
            waited.update(variables(eqns[i].invars))
            first.append(i)
        else:
            rest.append(i)
    return first[::-1], rest[::-1]


LEAST_SPARED = 16000
"""Operations that XLA need not compile, below which a plan stays whole: the parts that are alone
cost as much, since XLA makes equal kernels of one executable once."""

_BESIDE = LEAST_SECONDS / 8
"""Operations that no other waits for are computed beside the next layer from this estimate on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Operations that become one executable.

    Args:
        eqns: Their places.
        layer: Whether it is likely that others are equal.
    """

    eqns: list[int]
    layer: bool


def pieces_of(eqns: Sequence[Any], forms: Sequence[int], uses: Uses) -> list[Piece]:
    """Divide operations where layers are equal.

    Args:
        eqns: The operations of a plan in an order by layers.
        forms: The number of each one's form.
        uses: Who reads what they make.

    Returns:
        The pieces in the order in which they run; none where there are no equal layers.
    """
    known: dict[int, int] = {}
    costs = [compiled_operations(eqn, known) for eqn in eqns]
    runs = layers_of(eqns, forms, costs, uses, LEAST_SPARED // 4)
    return [*_staggered(eqns, runs, uses)] if runs else []


def _staggered(eqns: Sequence[Any], runs: Sequence[Layers], uses: Uses) -> Iterator[Piece]:
    """Pieces in which each layer stands beside the updates of the layer before it.

    One core computes what the next layer waits for, the other has updates to compute meanwhile.
    """
    at = 0
    alone: list[int] = []
    for run in runs:
        alone += range(at, run.start)
        size = run.size * _together(run.count, run.together)
        count = run.count * run.size // size
        at = run.start + count * size
        starts = range(run.start, at, size)
        halves = [in_two(eqns, start, start + size, uses) for start in starts]
        if seconds_of(eqns[i] for i in halves[0][1]) < _BESIDE:
            if alone:
                yield Piece(eqns=alone, layer=False)
            alone = []
            for start in starts:
                yield Piece(eqns=[*range(start, start + size)], layer=True)
            continue
        yield Piece(eqns=alone + halves[0][0], layer=False)
        for (_, rest), (first, _) in pairwise(halves):
            yield Piece(eqns=rest + first, layer=True)
        alone = [*halves[-1][1]]
    alone += range(at, len(eqns))
    if alone:
        yield Piece(eqns=alone, layer=False)


def _together(count: int, wanted: int) -> int:
    """How many of some layers to put together: near what is wanted, and with none left over."""
    near = range(max(1, wanted // 2), 3 * wanted + 1)
    even = [size for size in near if count % size == 0 and count // size > 1]
    return min(even, key=lambda size: abs(size - wanted), default=wanted)
