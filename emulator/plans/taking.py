"""Values by their places in a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

__all__ = ["taker"]


def taker(places: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of a sequence that gives what lies at some places, in C for two or more.

    Args:
        places: The places.

    Example:
        >>> taker((2, 0))("abc"), taker((1,))("abc")
        (('c', 'a'), ('b',))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return lambda sequence: tuple([sequence[place] for place in places])
