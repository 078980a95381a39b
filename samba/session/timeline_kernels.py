"""The kernels of sections on a timeline: what XLA runs in each, of which operation and module."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from emulator.plans.kernel_trace import Event, KernelTrace, Module, parsed, thunks_of
from pef_schema.program import Program
from pef_schema.program_facts import modules_of, owners
from samba.support.timeline import Timeline, Track

__all__ = ["TimelineKernels", "in_lanes", "place_of"]

_log = logging.getLogger("samba")

_SCOPE = re.compile(r"jit\((.*)\)$")
_GRADIENT = "__grad"


def place_of(says: str, sections: Mapping[str, Sequence[str]], section: str) -> dict[str, str]:
    """The module and the operation that jax's name stack of an instruction names.

    Sections of one structure share an executable, whose names are those of the section that it was
    compiled for: its modules stand for those of the section that ran, in their order.

    Args:
        says: The name stack.
        sections: Modules by the name of the section.
        section: The section that ran.

    Returns:
        ``module`` and ``op``, each left out where it is not known.

    Example:
        >>> sections = {"fwd_0": ["net__a"], "fwd_1": ["net__b"]}
        >>> place_of("jit(run)/fwd_0/net__a/jit(aten.tanh.default)/tanh", sections, "fwd_1")
        {'module': 'net__b', 'op': 'aten.tanh.default'}
        >>> place_of("arrays[0]", sections, "fwd_1")
        {}
    """
    parts = says.split("/")
    at = next((i for i, part in enumerate(parts) if part in sections), None)
    if at is None or at + 1 >= len(parts):
        return {}
    named, gradient = parts[at + 1], ""
    if named.endswith(_GRADIENT):
        named, gradient = named.removesuffix(_GRADIENT), _GRADIENT
    twins, own = sections[parts[at]], sections[section]
    place: dict[str, str] = {}
    if named in twins and len(twins) == len(own):
        place["module"] = own[twins.index(named)] + gradient
    scope = _SCOPE.match(parts[at + 2]) if at + 2 < len(parts) else None
    if scope is not None:
        place["op"] = scope[1]
    return place


def in_lanes(ran: Sequence[Event]) -> list[tuple[int, Event]]:
    """Give each of some spans the first lane on which it overlaps with none before it.

    Args:
        ran: Spans in the order of their starts.

    Returns:
        Each with the number of its lane, from 0.

    Example:
        >>> [lane for lane, _ in in_lanes([("a", 0, 3), ("b", 1, 2), ("c", 2, 4), ("d", 3, 4)])]
        [0, 1, 1, 0]
    """
    ends: list[float] = []
    found: list[tuple[int, Event]] = []
    for event in ran:
        _, start, end = event
        lane = next((i for i, until in enumerate(ends) if until <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        found.append((lane, event))
    return found


class TimelineKernels:
    """What jax's profiler sees of the sections on a timeline, from now on.

    Raises:
        ProfilerInUse: If that profiler is running already.
    """

    def __init__(self) -> None:
        self._trace = KernelTrace()
        self._executables: dict[str, Any] = {}
        self._modules: dict[str, Module] = {}
        self._program: Program | None = None
        self._sections: Mapping[str, Sequence[str]] = {}

    def executed(self, section: str, executable: Any, program: Program) -> None:
        """A section has run.

        Args:
            section: Its name.
            executable: The ``jax.stages.Compiled`` that did it.
            program: The program it is of.
        """
        if program is not self._program:
            owned = owners(program)
            self._program = program
            self._sections = {s.name: modules_of(program, s, owned) for s in program.sections}
            self._executables = {}
        self._executables[section] = executable

    def put_on(self, timeline: Timeline) -> None:
        """End the trace, and note the kernels of the sections that a timeline has.

        Args:
            timeline: The timeline.
        """
        events = sorted(self._trace.stop(), key=lambda event: event[1])
        if not events:
            _log.warning(
                "timeline %s: it has no kernels, since something else has stopped jax's profiler",
                timeline.path,
            )
        starts = [start for _, start, _ in events]
        for span in timeline.spans(Track.SECTIONS):
            if span.name not in self._executables:
                continue
            module = self._module(span.name)
            first = bisect_left(starts, span.start)
            last = bisect_left(starts, span.start + span.seconds)
            ran = thunks_of(events[first:last], module.instructions)
            for lane, (name, start, end) in in_lanes(sorted(ran, key=lambda event: event[1:])):
                facts = {
                    "section": span.name,
                    "kind": module.kind(name),
                    "shape": module.instructions[name].shape,
                    **place_of(module.says(name), self._sections, span.name),
                }
                timeline.note(Track.KERNELS, name, start, end - start, facts, lane=lane)

    def _module(self, section: str) -> Module:
        found = self._modules.get(section)
        if found is None:
            found = self._modules[section] = parsed(self._executables[section].as_text())
        return found
