"""When a difference of timings counts.

Timings jitter, drift and have long tails, so one number against another says little. A section
counts as slower only if its median ratio passes ``RATIO`` and a rank test makes chance unlikely.
The gate asks again in fresh processes before it says so: it asks soon, by ``SUSPECT_RATIO`` and
``SUSPECT_P_VALUE``, since what is not asked again is missed, and judges all samples together.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
        p_slower, p_faster: One-sided p of the Mann-Whitney test that head is slower, or faster.
    """

    name: str
    base: float
    head: float
    p_slower: float
    p_faster: float

    @property
    def ratio(self) -> float:
        """Head over base: above 1 it became slower."""
        return self.head / self.base

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
        verdict = "slower" if self.slower else "faster" if self.faster else ""
        return (
            f"{self.name:48} {1e3 * self.base:10.4f} {1e3 * self.head:10.4f} ms"
            f"  {self.ratio:6.3f}  p {min(self.p_slower, self.p_faster):.1e}  {verdict}"
        ).rstrip()


def compare(name: str, base: Sequence[float], head: Sequence[float]) -> Comparison:
    """Compare timings.

    Args:
        name: Which quantity.
        base, head: Samples, in seconds; best taken in turns.

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

    return Comparison(
        name=name,
        base=statistics.median(base),
        head=statistics.median(head),
        p_slower=float(mannwhitneyu(head, base, alternative="greater").pvalue),
        p_faster=float(mannwhitneyu(head, base, alternative="less").pvalue),
    )
