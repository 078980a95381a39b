"""What executables do inside, as jax's profiler sees it: their thunks, with their times.

The profiler writes one event for a thunk's start and one for its end, which may come on another
thread: convolutions and some products go on there after the first event has ended.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from emulator.errors import DeviceError
from emulator.handler_errors import raise_error_of_handler

END = "end: "
"""How the name of a thunk's second event begins."""
_MARK = "samba kernel trace"
"""The event by which the profiler's clock is compared with that of the process."""

Event = tuple[str, float, float]
"""Name, start and end; which unit the times have depends on the source."""


class ProfilerInUse(DeviceError):
    """jax's profiler is running already, and a process has only one.

    Attributes:
        problem: What jax says.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"jax's profiler cannot be started ({problem}). Stop the trace that is being taken, "
            "by jax.profiler.stop_trace(), or do without kernels."
        )


class KernelTrace:
    """What jax's profiler sees from now on.

    Raises:
        ProfilerInUse: If it is running already.
    """

    def __init__(self) -> None:
        profiler = _profiler()
        self._folder = tempfile.TemporaryDirectory()
        options = profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            profiler.start_trace(self._folder.name, profiler_options=options)
        except Exception as error:
            raise_error_of_handler(error)
            self._folder.cleanup()
            raise ProfilerInUse(str(error).partition("\n")[0].rstrip(".")) from error
        with profiler.TraceAnnotation(_MARK):
            self._marked = time.perf_counter()

    def stop(self) -> list[Event]:
        """Stop the profiler.

        Returns:
            All events of all threads, in seconds as ``time.perf_counter()`` counts them; none if
            somebody else has stopped the profiler before.
        """
        profiler = _profiler()
        try:
            profiler.stop_trace()
            files = sorted(Path(self._folder.name).rglob("*.xplane.pb"))
            events: list[Event] = [
                (event.name, event.start_ns, event.start_ns + event.duration_ns)
                for file in files
                for plane in profiler.ProfileData.from_file(str(file)).planes
                for line in plane.lines
                for event in line.events
            ]
        except RuntimeError:  # there is no trace to stop
            return []
        finally:
            self._folder.cleanup()
        begun = next((start for name, start, _ in events if name == _MARK), None)
        if begun is None:
            return []
        return [
            (name, self._marked + 1e-9 * (start - begun), self._marked + 1e-9 * (end - begun))
            for name, start, end in events
        ]


def _profiler() -> Any:
    import jax  # noqa: PLC0415  # whoever takes no kernels may do without jax

    return jax.profiler


def thunks_of(events: Iterable[Event], known: Container[str]) -> list[Event]:
    """The thunks among the events of one executable.

    Args:
        events: Of all threads.
        known: Names of its instructions; events of other names are left out.

    Returns:
        Each with the time from its first event to the end of its last, in the order of names'
        first events.

    Example:
        >>> thunks_of([("c", 1.0, 2.0), ("end: c", 7.0, 7.0), ("d", 3.0, 5.0),
        ...     ("other", 0.0, 9.0)], {"c", "d"})
        [('c', 1.0, 7.0), ('d', 3.0, 5.0)]
    """
    starts: dict[str, list[tuple[float, float]]] = {}
    ends: dict[str, list[float]] = {}
    for name, start, end in events:
        if name in known:
            starts.setdefault(name, []).append((start, end))
        elif name.startswith(END):
            ends.setdefault(name.removeprefix(END), []).append(start)
    ran: list[Event] = []
    for name, begun in starts.items():
        begun.sort()
        ended = sorted(ends.get(name, ()))
        if len(ended) != len(begun):  # some thunks have no second event
            ended = [end for _, end in begun]
        ran += [(name, start, max(end, at)) for (start, end), at in zip(begun, ended, strict=True)]
    return ran
