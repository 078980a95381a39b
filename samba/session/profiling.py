"""Profiles that a session takes: of the front end, and of a stretch of a script."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from typing import ClassVar

from pef_schema.printable import say
from samba.abexit import SambaAtexit
from samba.profiler import PROFILER, Profiler
from samba.session.program_slot import ProgramSlot
from samba.session.runtime_profile import RuntimeProfile
from samba.session.timeline_kernels import TimelineKernels
from samba.support.given import flag_of, path_of
from samba.support.timeline import MOST_EVENTS, NoTimeline, Timeline

__all__ = ["Profiling"]

_log = logging.getLogger("samba")


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
    timeline.write()
    say(f"timeline: {timeline.path}, {timeline.count} events")
    if timeline.left_out:
        _log.warning(
            "timeline %s: %d events after the first %d are left out; start_timeline(most=...) "
            "keeps more",
            timeline.path,
            timeline.left_out,
            timeline.count,
        )
