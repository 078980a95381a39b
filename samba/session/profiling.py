"""Profiles that a session takes: of the front end, and of a stretch of a script."""

from __future__ import annotations

import cProfile
import io
import logging
import os
import pstats
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from typing import ClassVar

from emulator.counters import DeviceCounters
from pef_schema.atomic import write_atomically
from pef_schema.printable import say
from samba.abexit import SambaAtexit
from samba.profiler import PROFILER, Profiler
from samba.session.program_slot import ProgramSlot
from samba.session.timeline import TimelineKernels
from samba.support.given import flag_of, path_of
from samba.support.layout import bytes_text, created_line
from samba.support.timeline import MOST_EVENTS, NoTimeline, Timeline

LEVEL_VARIABLE = "ENABLE_RUNTIME_PERF"
"""Environment variable that turns runtime profiles on: SUMMARY or DETAILED."""

_SUMMARY_LINES = 40

_log = logging.getLogger("samba")


def runtime_level() -> str:
    """``"SUMMARY"`` or ``"DETAILED"`` if runtime profiles are on; empty otherwise."""
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    return level if level in ("SUMMARY", "DETAILED") else ""


@dataclass(slots=True, kw_only=True)
class _Running:
    profile: cProfile.Profile | None
    start: float
    counts: DeviceCounters | None
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

    def start(self, timer_enabled: bool = True, counts: DeviceCounters | None = None) -> None:
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


class Profiling:
    """Profiles of the front end and of stretches of a script.

    Args:
        slot: What is loaded.
        runtime_profile: The profile of a stretch of a script; a reset of the session leaves it.
    """

    _ends_timeline: ClassVar[bool] = False
    """Whether a timeline that nobody stops is written when the process ends."""

    def __init__(self, slot: ProgramSlot, runtime_profile: RuntimeProfile) -> None:
        self._slot, self._runtime_profile = slot, runtime_profile

    def start_samba_profile(self) -> None:
        """Start to time the front end; see :meth:`samba_profile`."""
        PROFILER.start_profile()

    def end_samba_profile(self, filename: str | PathLike[str] | None = None) -> None:
        """Stop timing the front end.

        Args:
            filename: Text file for a line on each event; None writes none.

        Raises:
            SambaError: It cannot be written.
        """
        if filename is not None:
            filename = path_of(filename, "session.end_samba_profile(filename)")
        PROFILER.stop_profile()
        if filename is not None:
            PROFILER.dump(filename)

    def samba_profile(
        self, filename: str | PathLike[str] | None = None
    ) -> AbstractContextManager[Profiler]:
        """Time the front end inside.

        While it is timed, a run waits for the device, so that its time is its own. Events:

        * ``SAMBA_SESSION_RUN_<types>``: a call of :meth:`run` with section types, such as
          ``SAMBA_SESSION_RUN_FWD_BCKWD``; ``SAMBA_SESSION_RUN`` without.
        * ``PyRT_SET_TENSORS``, ``PyRT_GET_TENSORS``: transfers to and from the device.
        * ``PyRT_SET_TENSORS_BROADCAST``, ``PyRT_GET_TENSORS_GATHER``: the same with several
          replicas: giving all of them the tensors of rank 0, and all of them fetching their own.
        * ``PyRT_SET_PINNED_INPUT_TENSORS``: inputs of a run while pinned memory is on.
        * ``PyRT_RUN``: running sections.
        * ``SAMBA_SET_PEF``: reading a PEF; ``SAMBA_INIT_RUNTIME``: opening the device.

        Args:
            filename: Text file for a line on each event; None writes none.

        Returns:
            A context manager that gives the profiler.

        Raises:
            SambaError: The file cannot be written.

        Example:
            >>> import samba
            >>> with samba.session.samba_profile() as profiler:
            ...     pass
            >>> profiler.names
            []
        """
        if filename is not None:
            filename = path_of(filename, "session.samba_profile(filename)")
        return self._timing(filename)

    @contextmanager
    def _timing(self, filename: str | None) -> Iterator[Profiler]:
        self.start_samba_profile()
        try:
            yield PROFILER
        finally:
            self.end_samba_profile(filename)

    def start_timeline(
        self, path: str | PathLike[str], *, most: int = MOST_EVENTS, kernels: bool = False
    ) -> None:
        """Note runs on a timeline, for Perfetto and other viewers of Chrome's trace format.

        Until :meth:`stop_timeline`, or the end of the process, a run goes section by section, as
        ``measure-sections`` does, and waits for each. Results are those of sections run one by one,
        which may differ from those of a whole run in the last bit. See ``docs/run.md``.

        Args:
            path: The file, JSON; what was there is replaced at the end.
            most: Events that are kept; how many later ones are left out is told.
            kernels: Whether kernels within sections are noted too, by jax's profiler, which makes
                runs slower.

        Raises:
            NoTimeline: If one was started before, or the file could not be written.
            ProfilerInUse: If kernels are wanted and jax's profiler is running already.
        """
        if isinstance(PROFILER.timeline, Timeline):
            raise NoTimeline(
                path=PROFILER.timeline.path,
                problem="it was started before: call stop_timeline() first.",
            )
        timeline = Timeline(path, most=most)
        if kernels:
            timeline.take_kernels(TimelineKernels())
        PROFILER.put_on(timeline)
        if not self._ends_timeline:
            Profiling._ends_timeline = True
            SambaAtexit.register(_end_timeline)

    def stop_timeline(self) -> None:
        """End the timeline and write it.

        Raises:
            NoTimeline: If none was started.
            SambaError: If it cannot be written.
        """
        if PROFILER.timeline is None:
            raise NoTimeline(
                path="", problem="stop_timeline(): no timeline was started; call start_timeline()."
            )
        _end_timeline()

    def start_runtime_profile(self, timer_enabled: bool = True) -> None:
        """Start a profile of Python functions and of the device's work.

        Nothing happens unless the environment variable ``ENABLE_RUNTIME_PERF`` is SUMMARY or
        DETAILED.

        Args:
            timer_enabled: Whether the end prints the wall time since here.
        """
        timer_enabled = flag_of(timer_enabled, "session.start_runtime_profile(timer_enabled=...)")
        loaded = self._slot.loaded
        self._runtime_profile.start(
            timer_enabled, None if loaded is None else loaded.device.counters
        )

    def end_runtime_profile(self, log_file: str | PathLike[str] = "cprofile_tmp.log") -> None:
        """End the profile that :meth:`start_runtime_profile` began and write it.

        Args:
            log_file: Text file to write; what was there is replaced.

        Raises:
            SambaError: It cannot be written.
        """
        log_file = path_of(log_file, "session.end_runtime_profile(log_file)")
        loaded = self._slot.loaded
        if loaded is not None and self._runtime_profile.running:
            loaded.device.synchronize()
        self._runtime_profile.end(log_file)


def _end_timeline() -> None:
    timeline = PROFILER.timeline
    if not isinstance(timeline, Timeline):
        return
    PROFILER.put_on(None)
    start = time.perf_counter()
    timeline.write()
    size = f"{bytes_text(os.stat(timeline.path).st_size)}, {timeline.count} events"
    seconds, then = time.perf_counter() - start, "open it at https://ui.perfetto.dev"
    say(created_line("timeline", timeline.path, size=size, seconds=seconds, then=then))
    if timeline.left_out:
        _log.warning(
            "timeline %s: %d events after the first %d are left out; start_timeline(most=...) "
            "keeps more",
            timeline.path,
            timeline.left_out,
            timeline.count,
        )
