"""What later layers wait for, and what they do not: updates, and what only they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.plans.linked.uses import Uses
from emulator.plans.traced.operations import variables

__all__ = ["in_two"]


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
