"""What the cases of a sweep end as, counted."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Outcome(StrEnum):
    """How the device ends beside torch."""

    EQUAL = "equal"
    """Both give the same values, or both raise."""
    NAMED = "named"
    """The device refuses what torch does, or does otherwise, and says so by name."""
    SILENT = "silent"
    """Another value without a word, or an error that is not the project's."""


class Tally:
    """The outcomes of a sweep.

    Args:
        sweep: Its name.
    """

    def __init__(self, sweep: str) -> None:
        self.sweep = sweep
        self.counts: Counter[Outcome] = Counter()
        self.silent: list[str] = []

    def add(self, case: str, outcome: Outcome, text: str = "") -> None:
        """Count a case.

        Args:
            case: What was run, so that a person can run it again.
            outcome: How it ended.
            text: What differed.
        """
        self.counts[outcome] += 1
        if outcome is Outcome.SILENT:
            self.silent.append(f"{case}: {text}")

    def line(self) -> str:
        """The counts in one line."""
        return f"{self.sweep}: " + ", ".join(f"{o} {self.counts[o]}" for o in Outcome)

    def close(self, at_least: int) -> None:
        """Print the counts, and fail if a case was silent.

        Args:
            at_least: How many cases have to end equal, so that a sweep that runs none fails.
        """
        print(self.line())
        assert not self.silent, f"{self.line()}\n" + "\n".join(self.silent)
        assert self.counts[Outcome.EQUAL] >= at_least, self.line()
