"""A timeline of a stretch of a script, in the trace event format that Perfetto and Chrome open.

Format: "Trace Event Format" of the Chromium project, complete events (``ph`` is ``X``) on threads
that are named by metadata events (``M``); times are in microseconds.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError, quoted
from pef_schema.printable import json_text
from pef_schema.program import Program

MOST_EVENTS = 200_000
"""Events that a timeline keeps; a viewer's file of them has some 40 MB."""
_MICRO = 1e6


class Track(enum.IntEnum):
    """Tracks of a timeline: threads of one process, as viewers have it."""

    HOST = 1
    SECTIONS = 2
    COMMUNICATION = 3
    KERNELS = 4
    """The first of as many lanes as kernels run beside one another."""


class NoTimeline(SambaError):
    """A timeline cannot be begun, ended or written.

    Args:
        path: Its file; empty where there is none.
        problem: What was found and what to do, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"timeline {quoted(path, 1024)}: {problem}" if path else problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took a while.

    Args:
        track: Where it is.
        name: What viewers show.
        start: When it began, as ``time.perf_counter()`` counts.
        seconds: How long it took.
        facts: What viewers show of it when asked.
        lane: Beside which others of its track it is.
    """

    track: Track
    name: str
    start: float
    seconds: float
    facts: Mapping[str, Any]
    lane: int = 0


_NO_FACTS: Mapping[str, Any] = {}


class Spans(Protocol):
    """What runs are noted on while they are watched."""

    def span(
        self, track: Track, name: str, facts: Mapping[str, Any] = ...
    ) -> AbstractContextManager[None]:
        """Note how long the body takes."""
        ...

    def executed(self, section: str, executable: Any, program: Program) -> None:
        """Note the executable that has run a section."""
        ...


class KernelNotes(Protocol):
    """What takes note of the kernels of sections."""

    def executed(self, section: str, executable: Any, program: Program) -> None:
        """Note the executable that has run a section."""
        ...

    def put_on(self, timeline: Timeline) -> None:
        """Note all kernels on a timeline, at its end."""
        ...


class SectionClock:
    """How long sections take, for code that measures them.

    Args:
        beside: What notes all of it, too.

    Example:
        >>> clock = SectionClock()
        >>> with clock.span(Track.SECTIONS, "fwd_0"):
        ...     pass
        >>> clock.take() >= 0.0, clock.take()
        (True, 0.0)
    """

    def __init__(self, beside: Spans | None = None) -> None:
        self.beside = beside
        self._seconds = 0.0

    @contextmanager
    def span(
        self, track: Track, name: str, facts: Mapping[str, Any] = _NO_FACTS
    ) -> Generator[None, None, None]:
        """Count the time of the body if it is that of a section.

        Args:
            track, name, facts: As for :meth:`Timeline.span`.
        """
        with nullcontext() if self.beside is None else self.beside.span(track, name, facts):
            if track is not Track.SECTIONS:
                yield
                return
            start = time.perf_counter()
            try:
                yield
            finally:
                self._seconds += time.perf_counter() - start

    def executed(self, section: str, executable: Any, program: Program) -> None:
        """Pass the note on to ``beside``.

        Args:
            section, executable, program: As for :meth:`Timeline.executed`.
        """
        if self.beside is not None:
            self.beside.executed(section, executable, program)

    def take(self) -> float:
        """Seconds that sections have taken since this was called last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Timeline:
    """Events, which begin now; bounded in number.

    Args:
        path: The file to write at the end.
        most: Events that are kept; later ones are counted.

    Raises:
        NoTimeline: If the file could not be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     timeline = Timeline(f"{folder}/t.json")
        ...     with timeline.span(Track.HOST, "feed"):
        ...         pass
        ...     timeline.write()
        ...     timeline.count
        1
    """

    def __init__(self, path: str | os.PathLike[str], *, most: int = MOST_EVENTS) -> None:
        self.path = os.fspath(path)
        self._kernels: KernelNotes | None = None
        self.left_out = 0
        self._most = most
        self._events: list[Span] = []
        self._start = time.perf_counter()
        folder = Path(self.path).absolute().parent
        if not self.path or Path(self.path).is_dir():
            raise NoTimeline(path=self.path, problem="it is a folder. Name a file.")
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise NoTimeline(
                path=self.path,
                problem=f"files cannot be made in {quoted(str(folder), 1024)}. Name a file in a "
                "folder that exists and can be written.",
            )

    @property
    def count(self) -> int:
        """Events that it keeps."""
        return len(self._events)

    @contextmanager
    def span(
        self, track: Track, name: str, facts: Mapping[str, Any] = _NO_FACTS
    ) -> Generator[None, None, None]:
        """Note how long the body takes, also if it raises.

        Args:
            track: Where.
            name: What viewers show.
            facts: What they show of it when asked, plain data.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.note(track, name, start, time.perf_counter() - start, facts)

    def note(
        self,
        track: Track,
        name: str,
        start: float,
        seconds: float,
        facts: Mapping[str, Any] = _NO_FACTS,
        lane: int = 0,
    ) -> None:
        """Note something that was timed.

        Args:
            track, name, facts: As for :meth:`span`.
            start: When it began, as ``time.perf_counter()`` counts.
            seconds: How long it took.
            lane: Beside which others of its track it is shown.
        """
        if len(self._events) >= self._most:
            self.left_out += 1
            return
        self._events.append(
            Span(track=track, name=name, start=start, seconds=seconds, facts=facts, lane=lane)
        )

    def take_kernels(self, kernels: KernelNotes) -> None:
        """Set what notes kernels on this timeline.

        Args:
            kernels: What does it.
        """
        self._kernels = kernels

    def executed(self, section: str, executable: Any, program: Program) -> None:
        """Note the executable that has run a section, if kernels are wanted.

        Args:
            section: Its name.
            executable: The ``jax.stages.Compiled``.
            program: The program that has the section.
        """
        if self._kernels is not None:
            self._kernels.executed(section, executable, program)

    def spans(self, track: Track) -> list[Span]:
        """What is on one track, in the order in which it ended."""
        return [event for event in self._events if event.track is track]

    def as_dict(self) -> dict[str, Any]:
        """All of it as the format has it."""
        pid = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "samba"}}
        ]
        lanes = max((event.lane + 1 for event in self._events), default=0)
        names = {int(track): track.name.lower() for track in Track if track is not Track.KERNELS}
        names |= {Track.KERNELS + i: f"kernels {i}" for i in range(lanes) if self._kernels}
        for tid, name in names.items():
            for kind, facts in (("name", {"name": name}), ("sort_index", {"sort_index": tid})):
                events.append(
                    {"ph": "M", "name": f"thread_{kind}", "pid": pid, "tid": tid, "args": facts}
                )
        # A span is noted at its end: sorted, those that hold others come before them.
        for event in sorted(self._events, key=lambda e: (e.track, e.lane, e.start, -e.seconds)):
            events.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": event.track.name.lower(),
                    "pid": pid,
                    "tid": event.track + event.lane,
                    "ts": round((event.start - self._start) * _MICRO, 3),
                    "dur": round(event.seconds * _MICRO, 3),
                    "args": dict(event.facts),
                }
            )
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"events": len(self._events), "left_out": self.left_out},
        }

    def write(self) -> None:
        """End it, and write the file, whole or not at all.

        Raises:
            PefUnwritable: If it cannot be written.
        """
        if self._kernels is not None:
            self._kernels.put_on(self)
        write_atomically(self.path, [json_text(self.as_dict()).encode(), b"\n"])
