"""Counts of a device's work.

Nothing here is called in a run: what runs adds to attributes, and one run in some is timed.
"""

from __future__ import annotations

import enum
import operator
from collections import deque
from dataclasses import dataclass

_MANY = 1 << 62

_EACH = 32
"""Runs of a program that are timed one after the other before only some are."""
_STRIDE = 61
"""Of so many later runs two are timed, one after the other, so that the time between them is known:
a prime, so that no loop of a script falls in with it."""
LATEST = 512
"""Timed runs of which each time is kept; of all there are sums."""


class Source(enum.Enum):
    """Where the executable of a plan is from."""

    CACHE = "cache"
    """An earlier process made it, and it was read from the executable cache: a hit."""
    COMPILED = "compiled"
    """XLA made it, and it was not in the cache, which keeps it from now on: a miss."""
    UNKEPT = "unkept"
    """XLA made it, and no cache can hold its like: it calls functions of this process."""
    NO_CACHE = "no_cache"
    """XLA made it, or a cache that was set up in jax gave it: this project's cache is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How the executable of a plan was made.

    Args:
        source: Where it is from.
        lowering_seconds: Time to compose its steps and to lower them to StableHLO.
        xla_seconds: Time in XLA, or to read it from the cache.
    """

    source: Source
    lowering_seconds: float
    xla_seconds: float


class RunTimes:
    """Host times of some runs: each of the first few, then two in a prime number.

    A run asks ``left <= due``, where ``left`` goes down by one with each run; that is all it costs
    while it is not timed.

    Attributes:
        due: How many runs are left when the next one is to be timed.
        count: Runs that were timed.
        host: Seconds that these took on the host before they waited for results.
        wait: Seconds that they waited for results and copied them.
        latest: The two times of the latest of them.
        pauses: How often the time between two runs is known.
        between: Seconds of all these.
        latest_pauses: Those of the latest.

    Example:
        >>> times = RunTimes()
        >>> times.note(10, begun=0.0, host=0.25, wait=0.25)
        >>> times.note(9, begun=2.0, host=0.25, wait=0.25)
        >>> times.count, times.wait, times.due, times.between
        (2, 0.5, 8, 1.5)
    """

    __slots__ = (
        *("_ended", "between", "count", "due", "host", "latest", "latest_pauses", "pauses"),
        "wait",
    )

    def __init__(self) -> None:
        self.due = _MANY
        self.count = 0
        self.host = self.wait = 0.0
        self.latest: deque[tuple[float, float]] = deque(maxlen=LATEST)
        self.pauses = 0
        self.between = 0.0
        self.latest_pauses: deque[float] = deque(maxlen=LATEST)
        self._ended = (-1, 0.0)

    def note(self, left: int, *, begun: float, host: float, wait: float) -> None:
        """Take down a run that was timed.

        Args:
            left: How many runs were left when it began.
            begun: When it began, by the clock of the two times.
            host: Seconds that it took on the host before it waited for results.
            wait: Seconds that it waited for results and copied them.
        """
        self.count += 1
        self.host += host
        self.wait += wait
        self.latest.append((host, wait))
        before, ended = self._ended
        if before == left + 1:
            self.pauses += 1
            self.between += begun - ended
            self.latest_pauses.append(begun - ended)
        self._ended = left, begun + host + wait
        at_once = self.count < _EACH or (self.count - _EACH) % 2
        self.due = left - (1 if at_once else _STRIDE - 1)


class DeviceCounters:
    """Counts of the work that a device did since it was opened.

    Attributes:
        compiles: Plans compiled.
        ticks: Loses an element with each run: the C functions that run a plan count, too.
        prepared: Calls that asked for something else than the one before.
        lowering_seconds, xla_seconds: Of all plans, as :class:`Making` has them.
        sources: How many plans are from where.
        to_device: Bytes that the host has handed to the device: inputs of runs, tensors that were
            written, and first values of memory.
        from_device: Bytes that were copied to the host.
        times: Host times of runs.

    Example:
        >>> counters = DeviceCounters()
        >>> _ = next(counters.ticks)
        >>> counters
        DeviceCounters(compiles=0, runs=1)
    """

    __slots__ = (
        *("compiles", "from_device", "lowering_seconds", "prepared", "sources", "ticks", "times"),
        *("to_device", "xla_seconds"),
    )

    def __init__(self) -> None:
        self.compiles = 0
        self.ticks = iter(range(_MANY))
        self.prepared = 0
        self.lowering_seconds = self.xla_seconds = 0.0
        self.sources = dict.fromkeys(Source, 0)
        self.to_device = self.from_device = 0
        self.times = RunTimes()

    @property
    def runs(self) -> int:
        """Runs that took place, each of them wholly."""
        return _MANY - operator.length_hint(self.ticks)

    def note_plan(self, making: Making) -> None:
        """Record how a plan was made.

        Args:
            making: How it was made.
        """
        self.lowering_seconds += making.lowering_seconds
        self.xla_seconds += making.xla_seconds
        self.sources[making.source] += 1

    def __repr__(self) -> str:
        return f"DeviceCounters(compiles={self.compiles}, runs={self.runs})"
