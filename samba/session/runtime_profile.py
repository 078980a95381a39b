"""The profile of a stretch of a script: wall time, work of the device, Python functions."""

from __future__ import annotations

import cProfile
import io
import logging
import os
import pstats
import time
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Protocol

from pef_schema.atomic import write_atomically
from pef_schema.printable import say

__all__ = ["LEVEL_VARIABLE", "RuntimeProfile", "runtime_level"]

LEVEL_VARIABLE = "ENABLE_RUNTIME_PERF"
"""Environment variable that turns runtime profiles on: SUMMARY or DETAILED."""

_SUMMARY_LINES = 40

_log = logging.getLogger("samba")


class Counts(Protocol):
    """Counts of a device: plans that were compiled, and runs."""

    @property
    def compiles(self) -> int:
        """Plans compiled."""
        ...

    @property
    def runs(self) -> int:
        """Runs that took place."""
        ...


def runtime_level() -> str:
    """``"SUMMARY"`` or ``"DETAILED"`` if runtime profiles are on; empty otherwise."""
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    return level if level in ("SUMMARY", "DETAILED") else ""


@dataclass(slots=True, kw_only=True)
class _Running:
    profile: cProfile.Profile | None
    start: float
    counts: Counts | None
    compiles: int
    runs: int
    tell: bool
    level: str


class RuntimeProfile:
    """Starts and ends runtime profiles, one at a time.

    Without ``ENABLE_RUNTIME_PERF`` both do nothing.
    """

    def __init__(self) -> None:
        self._running: _Running | None = None

    @property
    def running(self) -> bool:
        """Whether a profile was started and not ended."""
        return self._running is not None

    def start(self, timer_enabled: bool = True, counts: Counts | None = None) -> None:
        """Starts a profile; one that is running is dropped.

        Args:
            timer_enabled: Whether :meth:`end` prints the wall time.
            counts: Counters of the device, None if there is none yet.
        """
        level = runtime_level()
        if not level:
            return
        self._stop()
        profile: cProfile.Profile | None = cProfile.Profile()
        try:
            profile.enable()
        except ValueError:  # since Python 3.12, where another profiler is active
            _log.warning(
                "runtime profile: another Python profiler is active; functions are left out"
            )
            profile = None
        self._running = _Running(
            profile=profile,
            start=time.perf_counter(),
            counts=counts,
            compiles=0 if counts is None else counts.compiles,
            runs=0 if counts is None else counts.runs,
            tell=timer_enabled,
            level=level,
        )

    def end(self, log_file: str | PathLike[str]) -> None:
        """Ends the profile and writes it.

        Args:
            log_file: Text file to write; what was there is replaced.

        Raises:
            SambaError: It cannot be written.
        """
        running = self._stop()
        if running is None:
            if runtime_level():
                _log.warning("end_runtime_profile: no runtime profile was started")
            return
        seconds = time.perf_counter() - running.start
        if running.tell:
            say(f"runtime profile: {seconds:.6f} s between start and end")
        write_atomically(fspath(log_file), [_text(running, seconds).encode()])

    def _stop(self) -> _Running | None:
        running, self._running = self._running, None
        if running is not None and running.profile is not None:
            running.profile.disable()
        return running


def _text(running: _Running, seconds: float) -> str:
    out = io.StringIO()
    say(f"runtime profile ({running.level.lower()}): {seconds:.6f} s", file=out)
    if running.counts is not None:
        runs = running.counts.runs - running.runs
        compiles = running.counts.compiles - running.compiles
        say(f"device: {runs} runs, {compiles} plans compiled", file=out)
    if running.profile is not None:
        stats = pstats.Stats(running.profile, stream=out).sort_stats("cumulative")
        if running.level == "SUMMARY":
            stats.print_stats(_SUMMARY_LINES)
        else:
            stats.print_stats()
    return out.getvalue()
