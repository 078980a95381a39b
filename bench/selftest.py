"""Does the gate do what it is for? It must catch a planted slowdown and be quiet otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from bench.gate import GateSettings, Measure, Verdict, decide, measure_in, tree_of
from bench.measurement import FULL
from bench.user_gate import measure_of

MakeMeasure = Callable[[GateSettings], AbstractContextManager[Measure]]
"""What measures identical code on both sides, while the context lasts."""


@contextmanager
def of_one_tree(settings: GateSettings) -> Generator[Measure, None, None]:
    """Measure cases of the bench, as the code is now."""
    with tree_of(None) as tree:
        yield measure_in(tree, tree, settings)


def of_pef(pef: Path) -> MakeMeasure:
    """Measure a user's PEF against itself.

    Args:
        pef: The PEF.
    """
    return lambda settings: nullcontext(measure_of(pef, pef, settings))


def _said(verdict: Verdict) -> str:
    if verdict.slower:
        return f"SLOWER: {', '.join(verdict.slower)}"
    return "suspected, not confirmed" if verdict.together else "quiet"


def quiet_runs(
    count: int, settings: GateSettings, case: str, make: MakeMeasure, tell: Callable[[str], None]
) -> bool:
    """Run the gate several times on identical code.

    Args:
        count: How many times.
        settings: How to measure.
        case: Name of the case.
        make: Gives a function that measures it.
        tell: Receives a line on each time.

    Returns:
        Whether the gate found no difference in any of them.
    """
    tripped = 0
    with make(settings) as measure:
        for number in range(1, count + 1):
            start = time.perf_counter()
            verdict = decide(case, measure, settings.processes)
            tripped += bool(verdict.slower)
            worst = max(verdict.first, key=lambda c: c.ratio)
            tell(
                f"run {number} of {count}: {_said(verdict)}; highest ratio {worst.ratio:.3f} "
                f"({worst.name}, p {worst.p_slower:.1e}); {time.perf_counter() - start:.0f} s"
            )
    tell(f"{count} runs of identical code: the gate tripped {tripped} times")
    return tripped == 0


def planted(
    section: str,
    factor: float,
    settings: GateSettings,
    case: str,
    make: MakeMeasure,
    tell: Callable[[str], None],
) -> bool:
    """Run the gate on identical code with one section of head made slower.

    Args:
        section: Name of the section; the first one if empty.
        factor: How many times as long it takes then.
        settings, case, make, tell: As for :func:`quiet_runs`.

    Returns:
        Whether the gate named that section and no other.
    """
    if not section:
        with make(replace(settings, rounds=1)) as measure:
            section = next(name for name in measure(case, 1) if name != FULL)
    with make(replace(settings, plants={section: factor})) as measure:
        verdict = decide(case, measure, settings.processes)
    tell(str(verdict))
    caught = verdict.slower == (section,)
    outcome = "finds" if caught else "does NOT find"
    tell(f"the gate {outcome} that section {section} was made {factor:g} times as slow")
    return caught
