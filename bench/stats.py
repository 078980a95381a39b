"""When a difference of timings counts.

Timings jitter, drift and have long tails, so one number against another says little. A section
counts as slower only if its median ratio passes ``RATIO`` and a rank test makes chance unlikely.
The gate asks again in fresh processes before it says so: it asks soon, by ``SUSPECT_RATIO`` and
``SUSPECT_P_VALUE``, since what is not asked again is missed, and judges all samples together.

Samples that were taken in turns are compared in pairs: a machine that is slower for a minute is
slower for both of a pair, while the medians of both sides may be of different minutes.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RATIO = 1.10
"""Medians closer than this are never called different."""

P_VALUE = 0.002
"""Chance that a rank test may leave; asv uses the same."""

SUSPECT_RATIO = 1.05
"""Medians farther apart than this are worth another question: a quarter of what is to be caught."""

SUSPECT_P_VALUE = 0.05
"""Chance that the rank test may leave of what is worth another question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Timings of one quantity in two revisions.

    Args:
        name: Which quantity.
        base, head: Medians.
        ratio: Head over base: above 1 it became slower. The median of pairs where there are pairs.
        p_slower, p_faster: One-sided p that head is slower, or faster.
    """

    name: str
    base: float
    head: float
    ratio: float
    p_slower: float
    p_faster: float

    @property
    def slower(self) -> bool:
        """Whether head counts as slower."""
        return self.ratio > RATIO and self.p_slower < P_VALUE

    @property
    def suspect(self) -> bool:
        """Whether head may be slower: not enough to say so, enough to ask again."""
        return self.ratio > SUSPECT_RATIO and self.p_slower < SUSPECT_P_VALUE

    @property
    def faster(self) -> bool:
        """Whether head counts as faster."""
        return self.ratio < 1 / RATIO and self.p_faster < P_VALUE

    def __str__(self) -> str:
        return self.line("slower" if self.slower else "faster" if self.faster else "")

    def line(self, verdict: str) -> str:
        """A row of a table.

        Args:
            verdict: What is said of it; empty for nothing.
        """
        return (
            f"{self.name:48} {1e3 * self.base:10.4f} {1e3 * self.head:10.4f} ms"
            f"  {self.ratio:6.3f}  p {min(self.p_slower, self.p_faster):.1e}  {verdict}"
        ).rstrip()


def compare_pairs(name: str, base: Sequence[float], head: Sequence[float]) -> Comparison:
    """Compare timings that were taken in turns, by Wilcoxon's signed ranks.

    Args:
        name: Which quantity.
        base, head: Samples, in seconds; those of one place were taken one after the other.

    Returns:
        The comparison.

    Example:
        >>> phases = [1.0, 1.01, 1.0, 1.02, 1.5, 1.52, 1.51, 1.5, 1.01, 1.0, 1.53, 1.49]
        >>> result = compare_pairs("x", phases, [1.12 * t for t in phases])
        >>> result.slower, round(result.ratio, 3)
        (True, 1.12)
    """
    from scipy.stats import wilcoxon  # noqa: PLC0415  # it takes longer to load than all else

    logs = [math.log(h / b) for b, h in zip(base, head, strict=True)]

    def p_value(alternative: str) -> float:
        with warnings.catch_warnings():
            # It warns of few samples, for which p is large enough as it is.
            warnings.simplefilter("ignore", UserWarning)
            result: Any = wilcoxon(
                logs, alternative=alternative, zero_method="zsplit", method="approx"
            )
        return float(result.pvalue)

    return Comparison(
        name=name,
        base=statistics.median(base),
        head=statistics.median(head),
        ratio=math.exp(statistics.median(logs)),
        p_slower=p_value("greater"),
        p_faster=p_value("less"),
    )


def compare_processes(
    name: str, base: Sequence[float], head: Sequence[float], processes: int
) -> Comparison:
    """Compare timings of several processes by Student's t over what each process says.

    Where its memory lies makes a whole process faster or slower, so its samples are one witness and
    not many, whatever their number.

    Args:
        name: Which quantity.
        base, head: Samples, in seconds, those of a process after those of the one before; those
            of one place were taken one after the other.
        processes: How many processes of each side there are, two or more.

    Returns:
        The comparison.

    Example:
        >>> same, slow = [1.0, 1.01] * 4, [1.2, 1.22] * 4
        >>> compare_processes("x", same, slow, 4).slower
        True
        >>> compare_processes("x", same, [*slow[:2], *same[2:]], 4).slower
        False
    """
    from scipy.stats import t  # noqa: PLC0415  # it takes longer to load than all else

    logs = [math.log(h / b) for b, h in zip(base, head, strict=True)]
    each = len(logs) // processes
    said = [statistics.median(logs[i * each : (i + 1) * each]) for i in range(processes)]
    mean = statistics.fmean(said)
    # No processes agree better than a clock and a scheduler let them.
    error = max(statistics.stdev(said), _LEAST_SPREAD) / math.sqrt(processes)
    return Comparison(
        name=name,
        base=statistics.median(base),
        head=statistics.median(head),
        ratio=math.exp(mean),
        p_slower=float(t.sf(mean / error, processes - 1)),
        p_faster=float(t.cdf(mean / error, processes - 1)),
    )


_LEAST_SPREAD = 1e-3
"""Of logarithms of ratios between processes."""


def compare(name: str, base: Sequence[float], head: Sequence[float]) -> Comparison:
    """Compare unpaired timings by the Mann-Whitney test.

    Args:
        name: Which quantity.
        base, head: Samples, in seconds.

    Returns:
        The comparison.

    Example:
        >>> calm = [1.00, 1.02, 1.01, 0.99, 1.00, 1.03, 0.98, 1.01]
        >>> compare("x", calm, [1.2 * t for t in calm]).slower
        True
        >>> compare("x", calm, calm[::-1]).slower
        False
    """
    from scipy.stats import mannwhitneyu  # noqa: PLC0415  # it takes longer to load than all else

    before, after = statistics.median(base), statistics.median(head)
    return Comparison(
        name=name,
        base=before,
        head=after,
        ratio=after / before,
        p_slower=float(mannwhitneyu(head, base, alternative="greater").pvalue),
        p_faster=float(mannwhitneyu(head, base, alternative="less").pvalue),
    )
