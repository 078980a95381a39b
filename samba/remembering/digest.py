"""A digest of state, as its parts see it."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Digest"]


class Digest(Protocol):
    """What parts of a state are added to."""

    def put(self, *texts: str) -> None:
        """Add texts."""
        ...

    def add(self, value: Any, place: str) -> None:
        """Add an object with all that it holds.

        Args:
            value: The object.
            place: Where it was found, as an expression.
        """
        ...
