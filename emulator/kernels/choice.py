"""Candidates of a kind, and the one of them that a problem takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from emulator.kernels.problems import Problem
from emulator.kernels.proof import Call, onednn_is_good
from emulator.kernels.rules import present_rule
from emulator.kernels.target import Target, present_target

__all__ = ["Candidate", "applicable", "choose"]

P = TypeVar("P", bound=Problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[P]):
    """One way to compute something.

    All candidates of a kind take the same arguments and give the same values, within what the order
    of a float32 sum makes of them: products of bfloat16 and float16 are accumulated in float32.

    Args:
        name: As rules have it.
        applies: Whether it can compute a problem, well enough to be worth a measurement.
        run: Computes it.
        onednn: What it asks oneDNN for; None if nothing.
        native: Whether it is one of the native kernels, which are taken wherever they apply.
    """

    name: str
    applies: Callable[[P], bool]
    run: Callable[..., Any]
    onednn: Call | None = None
    native: bool = False


def applicable(problem: P, candidates: Sequence[Candidate[P]]) -> list[Candidate[P]]:
    """Candidates that can compute a problem here, in their order.

    Args:
        problem: The problem.
        candidates: All of its kind.

    Returns:
        Those that apply; without those that need oneDNN where it is not there, or where the plan
        does not run on one processor.
    """
    asked = present_target() is Target.PROCESSOR
    return [
        c
        for c in candidates
        if c.applies(problem)
        and (asked or not c.native)
        and (c.onednn is None or (asked and onednn_is_good(c.onednn, problem.dtype)))
    ]


def choose(problem: P, candidates: Sequence[Candidate[P]]) -> Candidate[P]:
    """The candidate that a problem takes by the present rule.

    Args:
        problem: The problem.
        candidates: All of its kind. The first that applies is the plain one: it is taken where
            nothing was measured.

    Returns:
        One that applies.
    """
    found = {c.name: c for c in applicable(problem, candidates)}
    native = next((c for c in found.values() if c.native), None)
    if native is not None:
        return native
    return found[present_rule().choose(problem, list(found))]
