"""The error that says of an object that no other process can find the same state."""

from __future__ import annotations

__all__ = ["Incomparable"]


class Incomparable(Exception):
    """The state of an object cannot be compared with that in another process.

    Attributes:
        place: Where it was found, as an expression.
        problem: Why not.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"{place} {problem}")
