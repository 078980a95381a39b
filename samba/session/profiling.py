"""Profiles that a session takes: of the front end, and of a stretch of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from samba.profiler import PROFILER, Profiler
from samba.session.program_slot import ProgramSlot
from samba.session.runtime_profile import RuntimeProfile

__all__ = ["Profiling"]


class Profiling:
    """Profiles of the front end and of stretches of a script.

    Args:
        slot: What is loaded.
        runtime_profile: The profile of a stretch of a script; a reset of the session leaves it.
    """

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
        PROFILER.stop_profile()
        if filename is not None:
            PROFILER.dump(filename)

    @contextmanager
    def samba_profile(self, filename: str | PathLike[str] | None = None) -> Iterator[Profiler]:
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
            The profiler.

        Raises:
            SambaError: The file cannot be written.

        Example:
            >>> import samba
            >>> with samba.session.samba_profile() as profiler:
            ...     pass
            >>> profiler.names
            []
        """
        self.start_samba_profile()
        try:
            yield PROFILER
        finally:
            self.end_samba_profile(filename)

    def start_runtime_profile(self, timer_enabled: bool = True) -> None:
        """Start a profile of Python functions and of the device's work.

        Nothing happens unless the environment variable ``ENABLE_RUNTIME_PERF`` is SUMMARY or
        DETAILED.

        Args:
            timer_enabled: Whether the end prints the wall time since here.
        """
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
        loaded = self._slot.loaded
        if loaded is not None and self._runtime_profile.running:
            loaded.device.synchronize()
        self._runtime_profile.end(log_file)
