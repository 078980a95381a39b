"""Executables that run one after the other as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.plans.direct_call import SLOW
from emulator.plans.taking import taker

__all__ = ["Link", "linked_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One of the executables.

    Args:
        call: The executable, a function of arrays.
        takes: Places of its arguments among all values.
        gives: Places of its results.
        ends: Places of values that nobody reads after it.
    """

    call: Callable[..., Any]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    ends: tuple[int, ...]


def linked_call(
    links: Sequence[Link], places: int, constants: Sequence[Any], results: tuple[int, ...]
) -> Callable[..., Any]:
    """One function of several executables.

    Args:
        links: The executables in the order in which they run.
        places: How many values there are: arguments, constants and all that is made.
        constants: What lies behind the arguments.
        results: Places of what the function returns.

    Returns:
        A function of arrays that gives arrays. It holds signals back; who calls it ends that.
    """
    steps = tuple([(k.call, taker(k.takes), k.gives, k.ends) for k in links])
    take = taker(results)
    behind = (*constants, *[None] * places)

    def call(*arrays: Any) -> Any:
        SLOW.begin()  # what is donated is gone, and the results are not stored yet
        values = [*arrays, *behind]
        for run, arguments, gives, ends in steps:
            for place, value in zip(gives, run(*arguments(values)), strict=True):
                values[place] = value
            for place in ends:
                values[place] = None
        return take(values)

    return call
