"""Times of this project's sections, and their sum against the full schedule."""

from __future__ import annotations

from bench.measurement import FULL, OURS, Results
from bench.models import CASES
from bench.suites import Settings

SUM = "(sum of sections)"
"""Stands among the sections for all of them, one after the other."""


def sections(settings: Settings, results: Results) -> None:
    """Time every section by itself, their sum, and the full schedule as one executable."""
    for case in settings.cases:
        if case not in CASES:
            continue  # their thunks say more
        settings.tell(f"sections: {case}")
        with settings.worker(case, OURS) as worker:
            worker.ask("sections", count=1)
            found: dict[str, list[float]] = worker.ask("sections", count=settings.rounds)
        full = found.pop(FULL)
        for name, seconds in found.items():
            results.add("sections", case, OURS, name, "s", seconds)
        results.add("sections", case, OURS, SUM, "s", map(sum, zip(*found.values(), strict=True)))
        results.add("sections", case, OURS, FULL, "s", full)
