"""What can go wrong in a benchmark."""

from __future__ import annotations

from pef_schema.errors import SambaError


class BenchError(SambaError):
    """A benchmark could not be run, or its contenders do not compute the same."""


class WorkerFailed(BenchError):
    """The process of a contender ended or reported an error.

    Args:
        case: Name of the case.
        contender: Name of the contender.
        reason: Last lines of what it said.
    """

    def __init__(self, *, case: str, contender: str, reason: str) -> None:
        self.case, self.contender, self.reason = case, contender, reason
        super().__init__(f"{contender} failed on {case}: {reason}")


class LossesDiffer(BenchError):
    """Two contenders disagree, so that comparing their times would mean nothing.

    Args:
        case: Name of the case.
        losses: First losses of each contender.
    """

    def __init__(self, *, case: str, losses: dict[str, list[float]]) -> None:
        self.case, self.losses = case, losses
        shown = "; ".join(f"{name}: {values}" for name, values in losses.items())
        super().__init__(
            f"the contenders' losses on {case} differ: {shown}. "
            "They must compute the same step; mend the one that differs from eager"
        )
