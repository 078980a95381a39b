"""Does the gate do what it is for? It must catch a planted slowdown and be quiet otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from bench.gate import GateSettings, Verdict, decide, measure_in, measure_pair
from bench.measurement import FULL
from bench.tree import tree_of

CASE = "lenet"
"""A small case, so that many runs take minutes."""


def _runs(settings: GateSettings, case: str, count: int, tell: Callable[[str], None]) -> int:
    """Run the gate on identical code; returns how often it found something slower."""
    found = 0
    with tree_of(None) as tree:
        for number in range(1, count + 1):
            start = time.perf_counter()
            verdict = decide(case, measure_in(tree, tree, settings), settings.processes)
            found += bool(verdict.slower)
            worst = max(verdict.first, key=lambda c: c.ratio)
            tell(
                f"run {number} of {count}: {_said(verdict)}; highest ratio {worst.ratio:.3f} "
                f"({worst.name}, p {worst.p_slower:.1e}); {time.perf_counter() - start:.0f} s"
            )
    return found


def _said(verdict: Verdict) -> str:
    if verdict.slower:
        return f"SLOWER: {', '.join(verdict.slower)}"
    return "suspected, not confirmed" if verdict.together else "quiet"


def quiet_runs(
    count: int, settings: GateSettings, *, case: str = CASE, tell: Callable[[str], None] = print
) -> bool:
    """Run the gate on identical code so many times.

    Returns:
        Whether it was quiet every time.
    """
    tripped = _runs(settings, case, count, tell)
    tell(f"{count} runs of identical code: the gate tripped {tripped} times")
    return tripped == 0


def planted(
    section: str,
    factor: float,
    settings: GateSettings,
    *,
    case: str = CASE,
    tell: Callable[[str], None] = print,
) -> bool:
    """Run the gate on identical code with one section of head made slower.

    Args:
        section: Name of the section; the first one if empty.
        factor: How many times as long it takes then.
        settings: How to measure.
        case: Name of the case.
        tell: Called with what goes on.

    Returns:
        Whether the gate named that section and no other.
    """
    with tree_of(None) as tree:
        if not section:
            once = replace(settings, processes=1, rounds=1)
            section = next(n for n in measure_pair(case, tree, tree, once) if n != FULL)
        settings = replace(settings, plants={section: factor})
        verdict = decide(case, measure_in(tree, tree, settings), settings.processes)
    tell(str(verdict))
    caught = verdict.slower == (section,)
    tell(f"{section} planted {factor:g} times as slow: {'caught' if caught else 'NOT caught'}")
    return caught
