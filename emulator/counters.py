"""Counts of a device's work."""

from __future__ import annotations

import operator

__all__ = ["DeviceCounters"]

_MANY = 1 << 62


class DeviceCounters:
    """Counts of the work that a device did since it was opened.

    Attributes:
        compiles: Plans compiled.
        ticks: Loses an element with each run: the C functions that run a plan count, too.

    Example:
        >>> counters = DeviceCounters()
        >>> _ = next(counters.ticks)
        >>> counters
        DeviceCounters(compiles=0, runs=1)
    """

    __slots__ = ("compiles", "ticks")

    def __init__(self) -> None:
        self.compiles = 0
        self.ticks = iter(range(_MANY))

    @property
    def runs(self) -> int:
        """Runs that took place, each of them wholly."""
        return _MANY - operator.length_hint(self.ticks)

    def __repr__(self) -> str:
        return f"DeviceCounters(compiles={self.compiles}, runs={self.runs})"
