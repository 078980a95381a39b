"""Candidates of a kind, and the one of them that a problem takes: the first that applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Candidate", "applicable", "choose"]

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[P]):
    """One way to compute something.

    All candidates of a kind take the same arguments and give the same values, within what the order
    of a float32 sum makes of them: products of bfloat16 and float16 are accumulated in float32.

    Args:
        name: What people call it.
        applies: Whether it can compute a problem, and is the best of those that come after it.
        run: Computes it.
    """

    name: str
    applies: Callable[[P], bool]
    run: Callable[..., Any]


def applicable(problem: P, candidates: Sequence[Candidate[P]]) -> list[Candidate[P]]:
    """Candidates that can compute a problem here, in their order.

    Args:
        problem: The problem.
        candidates: All of its kind.
    """
    return [c for c in candidates if c.applies(problem)]


def choose(problem: P, candidates: Sequence[Candidate[P]]) -> Candidate[P]:
    """The candidate that a problem takes.

    Args:
        problem: The problem.
        candidates: All of its kind, the best first; one of them applies to everything.

    Returns:
        The first that applies.

    Example:
        >>> few = Candidate(name="few", applies=lambda n: n < 3, run=sum)
        >>> many = Candidate(name="many", applies=lambda n: True, run=sum)
        >>> choose(2, [few, many]).name, choose(5, [few, many]).name
        ('few', 'many')
    """
    return next(c for c in candidates if c.applies(problem))
