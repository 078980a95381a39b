"""What a session has done: compiles, cache, runs, bytes moved, host time.

The counts are those of the devices that it has opened. While a device is there, its counters are
read when somebody asks; afterwards they are added to what came before.
"""

from __future__ import annotations

import operator
import os
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.counters import LATEST, DeviceCounters, Source
from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError
from pef_schema.printable import json_text, printable, say_text
from samba.abexit import SambaAtexit
from samba.support.layout import bytes_text, seconds_text, some, table

if TYPE_CHECKING:
    from emulator.device import Device  # loads jax, which a session without a program needs not

FORMAT, VERSION = "samba.metrics", 1

_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of devices, added up.

    Args:
        compiles: Plans compiled, or read from the cache.
        runs: Runs that took place.
        prepared: Calls that asked for something else than the one before.
        lowering_seconds, xla_seconds: Of all plans.
        sources: How many plans are from where, in the order of the sources.
        to_device, from_device: Bytes moved.
        timed: Runs that were timed.
        host_seconds, wait_seconds: Of those, before waiting for results, and waiting.
        latest: The two times of the latest of them.
        pauses: Times between two runs that are known.
        between_seconds: All these together.
        latest_pauses: The latest of them.
    """

    compiles: int = 0
    runs: int = 0
    prepared: int = 0
    lowering_seconds: float = 0.0
    xla_seconds: float = 0.0
    sources: tuple[int, ...] = (0,) * len(Source)
    to_device: int = 0
    from_device: int = 0
    timed: int = 0
    host_seconds: float = 0.0
    wait_seconds: float = 0.0
    latest: tuple[tuple[float, float], ...] = ()
    pauses: int = 0
    between_seconds: float = 0.0
    latest_pauses: tuple[float, ...] = ()

    def __add__(self, more: Totals) -> Totals:
        """Both together."""
        added = {f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(self)}
        added["sources"] = tuple(map(operator.add, self.sources, more.sources))
        for name in ("latest", "latest_pauses"):
            added[name] = added[name][-LATEST:]
        return Totals(**added)


def totals_of(counters: DeviceCounters) -> Totals:
    """The counts of one device.

    Args:
        counters: Its counters.

    Example:
        >>> totals_of(DeviceCounters()).runs
        0
    """
    times = counters.times
    return Totals(
        compiles=counters.compiles,
        runs=counters.runs,
        prepared=counters.prepared,
        lowering_seconds=counters.lowering_seconds,
        xla_seconds=counters.xla_seconds,
        sources=tuple([counters.sources[source] for source in Source]),
        to_device=counters.to_device,
        from_device=counters.from_device,
        timed=times.count,
        host_seconds=times.host,
        wait_seconds=times.wait,
        latest=tuple(times.latest),
        pauses=times.pauses,
        between_seconds=times.between,
        latest_pauses=tuple(times.latest_pauses),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a session has done since it was made.

    Args:
        traces: Models traced, by ``compile``, ``trace_graph`` and evaluators.
        trace_seconds: Time that these took, with all else that they do.
        totals: Counts of its devices.
        rank, size: The rank of this process among how many, as of the program loaded last.

    Example:
        >>> metrics = Metrics(traces=0, trace_seconds=0.0, totals=Totals(), rank=0, size=1)
        >>> metrics.source(Source.CACHE)
        0
    """

    traces: int
    trace_seconds: float
    totals: Totals
    rank: int
    size: int

    @property
    def compiles(self) -> int:
        """Plans compiled, those that were read from the executable cache included."""
        return self.totals.compiles

    @property
    def runs(self) -> int:
        """Runs that took place."""
        return self.totals.runs

    def source(self, source: Source) -> int:
        """How many plans are from a source.

        Args:
            source: The source.
        """
        return self.totals.sources[list(Source).index(source)]

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for JSON; docs/run.md describes the keys."""
        totals = self.totals
        hosts, waits = ([times[k] for times in totals.latest] for k in (0, 1))
        return {
            "format": FORMAT,
            "version": VERSION,
            "rank": self.rank,
            "size": self.size,
            "traces": self.traces,
            "trace_seconds": self.trace_seconds,
            "compiles": totals.compiles,
            "lowering_seconds": totals.lowering_seconds,
            "xla_seconds": totals.xla_seconds,
            "cache": {
                "hits": self.source(Source.CACHE),
                "misses": self.source(Source.COMPILED),
                "unkept": self.source(Source.UNKEPT),
                "off": self.source(Source.NO_CACHE),
            },
            "runs": totals.runs,
            "prepared": totals.prepared,
            "bytes_to_device": totals.to_device,
            "bytes_from_device": totals.from_device,
            "timed_runs": totals.timed,
            "host_seconds": _times(hosts, totals.host_seconds, totals.timed),
            "wait_seconds": _times(waits, totals.wait_seconds, totals.timed),
            "between_seconds": _times(
                list(totals.latest_pauses), totals.between_seconds, totals.pauses
            ),
        }

    def __str__(self) -> str:
        """A report for people."""
        figures = self.as_dict()
        cache, host, wait = figures["cache"], figures["host_seconds"], figures["wait_seconds"]
        between, timed = figures["between_seconds"], some(figures["timed_runs"], "timed run")
        of = f" of rank {self.rank} of {self.size}" if self.size > 1 else ""
        rows = [
            ("traces", some(self.traces, "model") + f" in {seconds_text(self.trace_seconds)}"),
            (
                "compiles",
                some(figures["compiles"], "plan")
                + f": {seconds_text(figures['lowering_seconds'])} lowering, "
                f"{seconds_text(figures['xla_seconds'])} in XLA or reading the cache",
            ),
            (
                "executable cache",
                f"{some(cache['hits'], 'hit')}, {some(cache['misses'], 'miss', 'misses')}"
                f"; not kept {cache['unkept']:,}, without a cache {cache['off']:,}",
            ),
            ("runs", f"{figures['runs']:,}; prepared again {figures['prepared']:,}"),
            ("to the device", bytes_text(figures["bytes_to_device"])),
            ("from the device", bytes_text(figures["bytes_from_device"])),
            ("host time of a run", _spread(host, timed)),
            ("waiting for results", _spread(wait, timed)),
            ("between two runs", _spread(between, some(self.totals.pauses, "pause"))),
        ]
        return table((f"metrics{of}", ""), rows, width=_WIDTH)


def _times(latest: list[float], total: float, count: int) -> dict[str, float] | None:
    """Mean of all timed runs, and how the latest of them are spread; None if there are none."""
    if not latest:
        return None
    cuts = statistics.quantiles(latest, n=20, method="inclusive") if len(latest) > 1 else latest
    return {
        "mean": total / count,
        "median": statistics.median(latest),
        "p95": cuts[-1],
        "max": max(latest),
    }


def _spread(times: dict[str, float] | None, count: str) -> str:
    if times is None:
        return "none timed"
    return (
        f"median {seconds_text(times['median'])}, p95 {seconds_text(times['p95'])}, "
        f"mean {seconds_text(times['mean'])} of {count}"
    )


class MetricsBook:
    """Where the work of a session is taken down.

    Example:
        >>> MetricsBook().metrics().runs
        0
    """

    def __init__(self) -> None:
        self._traces = 0
        self._trace_seconds = 0.0
        self._past = Totals()
        self._devices: list[tuple[weakref.ref[Device], DeviceCounters]] = []
        self._rank, self._size = 0, 1

    def add(self, device: Device) -> None:
        """Count the work of a device, too.

        Args:
            device: The device.
        """
        self._settle()
        self._devices.append((weakref.ref(device), device.counters))

    def note_rank(self, rank: int, size: int) -> None:
        """Take down which of how many processes this is.

        Args:
            rank: Its rank.
            size: Of how many.
        """
        self._rank, self._size = rank, size

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Count a trace, and time the body."""
        self._traces += 1
        start = time.perf_counter()
        try:
            yield
        finally:
            self._trace_seconds += time.perf_counter() - start

    def metrics(self) -> Metrics:
        """All that was taken down."""
        totals = sum((totals_of(counters) for _, counters in self._devices), self._past)
        return Metrics(
            traces=self._traces,
            trace_seconds=self._trace_seconds,
            totals=totals,
            rank=self._rank,
            size=self._size,
        )

    def _settle(self) -> None:
        """Keep of devices that are gone what they counted, and nothing else."""
        there: list[tuple[weakref.ref[Device], DeviceCounters]] = []
        for entry in self._devices:
            if entry[0]() is None:
                self._past = self._past + totals_of(entry[1])
            else:
                there.append(entry)
        self._devices = there


METRICS_VARIABLE = "SAMBA_METRICS"
"""Environment variable that asks for metrics at the end of the process: ``1`` for a report on
standard error, or a file, which gets JSON if its name ends in ``.json``; ``0`` for none."""


def report_at_exit(metrics: Callable[[], Metrics]) -> bool:
    """Write metrics when the process ends, if the environment asks for them.

    Args:
        metrics: Returns the metrics; called when the process ends.

    Returns:
        Whether they will be written.
    """
    target = os.environ.get(METRICS_VARIABLE, "").strip()
    if target in ("", "0"):
        return False
    SambaAtexit.register(_write, target, metrics, os.getpid())
    return True


def _write(target: str, metrics: Callable[[], Metrics], process: int) -> None:
    if os.getpid() != process:
        return  # a child that was forked has done none of it
    figures = metrics()
    if target == "1":
        say_text(str(figures), file=sys.stderr)
        return
    path = _of_rank(Path(target), figures)
    is_json = path.suffix == ".json"
    text = json_text(figures.as_dict(), indent=2) if is_json else printable(str(figures))
    try:
        write_atomically(str(path), [f"{text}\n".encode()])
    except SambaError as error:
        say_text(f"error: {METRICS_VARIABLE}: {error}", file=sys.stderr)


def _of_rank(path: Path, figures: Metrics) -> Path:
    """A file of its own for each of several replicas.

    Example:
        >>> from samba.session.metrics import Totals
        >>> metrics = Metrics(traces=1, trace_seconds=0.5, totals=Totals(), rank=1, size=2)
        >>> _of_rank(Path("metrics.json"), metrics).name
        'metrics.rank1.json'
    """
    if figures.size == 1:
        return path
    return path.with_name(f"{path.stem}.rank{figures.rank}{path.suffix}")
