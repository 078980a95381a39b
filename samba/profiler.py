"""Profiler: how long named events of the front end take on the host."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Protocol, TypeVar

from pef_schema.atomic import write_atomically
from samba.errors import ArgumentError
from samba.support.layout import table
from samba.support.timeline import Spans

__all__ = ["MEASUREMENTS", "PROFILER", "Profiler", "UnknownEvent"]

_NAMES = 10_000
_LIMIT = 1_000_000
"""Times kept of one event: 8 MB. Later ones are counted only."""

F = TypeVar("F", bound=Callable[..., Any])


class UnknownEvent(ArgumentError, KeyError):
    """No event of that name was recorded."""

    def __str__(self) -> str:
        return str(self.args[0])


class Event:
    """A running event: what ``start_event`` gives and ``end_event`` takes."""

    __slots__ = ("name", "start")

    def __init__(self, name: str, start: float) -> None:
        self.name, self.start = name, start


class Follower(Protocol):
    """What writes of a training step by step, while it is asked for."""

    def ran(self, device: Any, steps: Any, /) -> None:
        """Take note of a run that was started."""
        ...

    def evaluated(self, program: Any, device: Any, names: Mapping[str, str], /) -> None:
        """Take note of a run of an evaluator."""
        ...

    def step_of(self, program: str, /) -> int:
        """How many updates of a program were made."""
        ...

    def go_on(self, program: str, step: int, /) -> None:
        """Go on from another step, that of a checkpoint."""
        ...

    def settle(self) -> None:
        """Wait for what is under way, and write it."""
        ...

    def close(self) -> None:
        """Write what is under way, and close the files."""
        ...


class Profiler:
    """Times named events while it is started, and does next to nothing while it is not.

    There is one profiler in a process: every ``Profiler()`` is the one that the session uses,
    so that events of an app and of the session stand in one table.

    Example:
        >>> profiler = Profiler()
        >>> profiler.start_profile()
        >>> with profiler.event("load"):
        ...     pass
        >>> profiler.stop_profile()
        >>> profiler.get_latencies(["load"])["load"] < 1
        True
    """

    _one: Profiler | None = None

    started: bool
    """Whether events are recorded."""
    timeline: Spans | None
    """What runs are noted on; None for nothing."""
    follower: Follower | None
    """What follows a training; None for nothing."""
    active: bool
    """Whether runs are watched, by any of these: the one thing that a run looks at."""

    def __new__(cls) -> Profiler:
        if cls._one is None:
            cls._one = super().__new__(cls)
            cls._one.started, cls._one.timeline, cls._one.follower = False, None, None
            cls._one.active = False
            cls._one.reset()
        return cls._one

    # -- recording ----------------------------------------------------------

    def start_profile(self) -> None:
        """Discards earlier records and starts recording; does nothing while it is recording."""
        if not self.started:
            self.reset()
            self.started = self.active = True

    def stop_profile(self) -> None:
        """Stops recording; what was recorded can be asked for until the next start."""
        self.started = False
        self._settle_active()

    def put_on(self, timeline: Spans | None) -> None:
        """Set the timeline on which runs are noted from now on.

        Args:
            timeline: The timeline; None for none.
        """
        self.timeline = timeline
        self._settle_active()

    def follow_by(self, follower: Follower | None) -> None:
        """Set what follows runs from now on.

        Args:
            follower: What follows them; None for nothing.
        """
        self.follower = follower
        self._settle_active()

    def _settle_active(self) -> None:
        watchers = (self.timeline, self.follower)
        self.active = self.started or any(watcher is not None for watcher in watchers)

    start, stop = start_profile, stop_profile

    def reset(self) -> None:
        """Forgets everything recorded."""
        self._times: dict[str, array[float]] = {}
        self._dropped: dict[str, int] = {}

    def start_event(self, name: str) -> Event | None:
        """Begins an event.

        Args:
            name: What is timed; times of the same name belong together.

        Returns:
            What :meth:`end_event` takes: a handle, None while the profiler is not started.
        """
        return Event(name, time.perf_counter()) if self.started else None

    def end_event(self, event: Event | None) -> None:
        """Ends an event and records how long it took.

        Args:
            event: What :meth:`start_event` gave. An event that began before the profiler was
                stopped is still recorded.
        """
        if event is not None:
            self._record(event.name, time.perf_counter() - event.start)

    def event(self, name: str) -> _Timed:
        """Times a ``with`` block, or every call of the function that it decorates.

        Args:
            name: Name of the event.

        Returns:
            A context manager that is also a decorator; it may be made before the start.
        """
        return _Timed(self, name)

    def _record(self, name: str, seconds: float) -> None:
        times = self._times.get(name)
        if times is None:
            # The rest of ever new names have one, so that they do not grow either.
            name = name if len(self._times) < _NAMES else "(other events)"
            times = self._times.setdefault(name, array("d"))
        if len(times) < _LIMIT:
            times.append(seconds)
        else:
            self._dropped[name] = self._dropped.get(name, 0) + 1

    # -- results ------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of the events recorded, in the order of their first end."""
        return list(self._times)

    def get_iter_times(self, key: str, warmup_iters: int = 0) -> list[float]:
        """Seconds that each occurrence of an event took.

        Args:
            key: Name of the event.
            warmup_iters: How many of the first occurrences to leave out.

        Raises:
            UnknownEvent: There was no such event.
            ArgumentError: None is left.
        """
        times = self._times.get(key)
        if times is None:
            raise UnknownEvent(
                where="Profiler, event name",
                found=repr(key),
                wanted=f"one of {', '.join(self._times) or 'none: nothing was recorded'}",
                hint="Events are recorded between start_profile() and stop_profile().",
            )
        if warmup_iters < 0 or warmup_iters >= len(times):
            raise ArgumentError(
                where=f"Profiler, warmup iterations of {key}",
                found=str(warmup_iters),
                wanted=f"0 to {len(times) - 1}: it occurred {len(times)} time(s)",
            )
        return list(times[warmup_iters:])

    def _get_iter_times(self, key: str, idx: int = 0) -> list[float]:
        """Older name of :meth:`get_iter_times`."""
        return self.get_iter_times(key, idx)

    def get_latencies(
        self, keys: Sequence[str] | None = None, warmup_iters: int = 0
    ) -> dict[str, float]:
        """Mean duration of events.

        Args:
            keys: Names of events, all if None.
            warmup_iters: How many of the first occurrences of each to leave out.

        Returns:
            Mean seconds by name.

        Raises:
            UnknownEvent: There was no such event.
            ArgumentError: None is left.
        """
        names = self.names if keys is None else keys
        return {k: statistics.fmean(self.get_iter_times(k, warmup_iters)) for k in names}

    def get_throughputs(
        self, keys: Sequence[str] | None = None, samples_per_iter: float = 1, warmup_iters: int = 0
    ) -> dict[str, float]:
        """Samples per second, by name of the event that handled them.

        Args:
            keys: Names of events, all if None.
            samples_per_iter: Samples that one occurrence handled.
            warmup_iters: How many of the first occurrences of each to leave out.

        Raises:
            UnknownEvent: There was no such event.
            ArgumentError: None is left.
        """
        return {
            key: samples_per_iter / max(latency, time.get_clock_info("perf_counter").resolution)
            for key, latency in self.get_latencies(keys, warmup_iters).items()
        }

    def print_statistics(
        self,
        keys: Sequence[str] | None = None,
        warmup: int = 0,
        num_samples_per_iter: float | None = None,
        measurements: Sequence[str] = ("latency",),
    ) -> str:
        """Lays out statistics of events for printing.

        Args:
            keys: Names of events, all if None.
            warmup: How many of the first occurrences of each to leave out.
            num_samples_per_iter: Samples that one occurrence handled; ``"throughput"`` needs it.
            measurements: Columns, of :data:`MEASUREMENTS`.

        Returns:
            A table with a line for each event.

        Raises:
            UnknownEvent: There was no such event.
            ArgumentError: A measurement does not exist or lacks what it needs.
        """
        for measurement in measurements:
            if measurement not in MEASUREMENTS:
                raise ArgumentError(
                    where="Profiler.print_statistics(measurements)",
                    found=repr(measurement),
                    wanted=f"some of {', '.join(MEASUREMENTS)}",
                )
        if "throughput" in measurements and num_samples_per_iter is None:
            raise ArgumentError(
                where="Profiler.print_statistics(measurements=['throughput'])",
                found="no num_samples_per_iter",
                wanted="the number of samples that one event handles",
            )
        rows = [["event", *(f"{m} {MEASUREMENTS[m]}".rstrip() for m in measurements)]]
        for key in self.names if keys is None else keys:
            times = self.get_iter_times(key, warmup)
            drops = self._dropped.get(key, 0)
            rows.append(
                [key, *(_cell(m, times, num_samples_per_iter, drops) for m in measurements)]
            )
        head, *cells = rows
        return table(head, cells, width=sys.maxsize, right=range(1, len(head)))

    def dump(self, filename: str | PathLike[str]) -> None:
        """Writes what was recorded as a text file: a line for each event.

        Args:
            filename: The file; its folder must exist.

        Raises:
            SambaError: It cannot be written.
        """
        columns = ("count", "total", "latency", "median", "min", "max")
        text = self.print_statistics(measurements=columns)
        write_atomically(fspath(filename), [f"{text}\n".encode()])


MEASUREMENTS = {
    "latency": "[ms]",
    "throughput": "[samples/s]",
    "count": "",
    "total": "[s]",
    "median": "[ms]",
    "min": "[ms]",
    "max": "[ms]",
}
"""Columns of :meth:`Profiler.print_statistics` with their units; ``latency`` is the mean."""


_IN_MILLISECONDS: Mapping[str, Callable[[list[float]], float]] = {
    "latency": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}


def _cell(measurement: str, times: list[float], samples: float | None, dropped: int) -> str:
    match measurement:
        case "count":
            return str(len(times) + dropped)
        case "total":
            return f"{sum(times):.6f}"
        case "throughput":
            return f"{(samples or 0) * len(times) / max(sum(times), 1e-12):.3f}"
    return f"{1e3 * _IN_MILLISECONDS[measurement](times):.4f}"


class _Timed:
    """An event around a ``with`` block or around calls of a function.

    It can be entered again while it is open, as a recursive function does.
    """

    __slots__ = ("_name", "_open", "_profiler")

    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler, self._name = profiler, name
        self._open: list[Event | None] = []

    def __enter__(self) -> None:
        self._open.append(self._profiler.start_event(self._name))

    def __exit__(self, *_: object) -> None:
        self._profiler.end_event(self._open.pop())

    def __call__(self, function: F) -> F:
        profiler, name = self._profiler, self._name

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not profiler.started:
                return function(*args, **kwargs)
            event = profiler.start_event(name)
            try:
                return function(*args, **kwargs)
            finally:
                profiler.end_event(event)

        return timed  # pyright: ignore[reportReturnType]  # functools.wraps keeps the signature


PROFILER = Profiler()
"""The one profiler; hot paths ask its ``started``."""
