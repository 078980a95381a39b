"""The operations of a plan in pieces: equal layers, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from emulator.plans.linked.layers import LEAST_SECONDS, Layers, layers_of
from emulator.plans.linked.uses import Uses
from emulator.plans.linked.waiting import in_two
from emulator.plans.traced.operations import compiled_operations, seconds_of

__all__ = ["LEAST_SPARED", "Piece", "pieces_of"]

LEAST_SPARED = 16000
"""Operations that XLA need not compile, below which a plan stays whole: the parts that are alone
cost as much, since XLA makes equal kernels of one executable once."""

_BESIDE = LEAST_SECONDS / 8
"""Time, by an estimate, from which on what nobody waits for is computed beside the next layer."""


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
    """Pieces in which each layer stands beside what nobody waits for of the layer before it.

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
