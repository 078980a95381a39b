"""Whether this process has joined others, for those who do not load what joins them."""

from __future__ import annotations

from typing import Protocol

__all__ = ["PRESENT", "Joined"]


class Joined(Protocol):
    """A job, as those see it who ask for this process's place in it.

    Attributes:
        rank: Number of this process.
    """

    rank: int


PRESENT: list[Joined] = []
"""The job of this process, none outside of one."""
