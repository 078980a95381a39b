"""A run as a timeline shows it: its sections, one after the other, and the kernels of each."""

from __future__ import annotations

import itertools
import logging
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from emulator.plans.hlo_text import Module, parsed
from emulator.plans.kernel_trace import Event, KernelTrace, thunks_of
from emulator.plans.steps import StepKey
from pef_schema.program import Program
from pef_schema.program_facts import modules_of, owners, section_lines, section_types, weight_lines
from samba.session.request import RunRequest
from samba.support.timeline import Spans, Timeline, Track

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_LINES = 4
"""Source lines that an event carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A section within a run.

    Args:
        name: Name of the section.
        section: Its id.
        steps: Its steps that run.
        first: Whether it is the first of the run.
        facts: What a viewer shows of it: id, types, modules, lines.
    """

    name: str
    section: int
    steps: StepKey
    first: bool
    facts: Mapping[str, Any]

    def request(self, whole: RunRequest) -> RunRequest:
        """What runs it, as ``session.run(section_ids=[id])`` asks for it.

        Args:
            whole: The request of the run; what it sets is set before the first section.
        """
        return RunRequest(
            None,
            (),
            whole.hyperparams if self.first else _NOTHING,
            ((), (self.section,), None, None),
            whole.grad_of_outputs if self.first else None,
            whole.train,
        )


class Pieces:
    """The pieces of a program's runs.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._owners, self._weights = owners(program), weight_lines(program)
        self._facts: dict[int, Mapping[str, Any]] = {}

    def of(self, steps: StepKey) -> list[Piece]:
        """The pieces of a run.

        Args:
            steps: ``(section, step of the section)`` pairs in the order to run.
        """
        pieces: list[Piece] = []
        for section, group in itertools.groupby(steps, key=lambda step: step[0]):
            series = tuple(group)
            entry = self._program.sections[section]
            # A section that is called several times in a row has its steps as often.
            calls = max(1, len(series) // len(set(series)))
            each = len(series) // calls
            for call in range(calls):
                part = series[call * each : (call + 1) * each]
                pieces.append(
                    Piece(
                        name=entry.name,
                        section=section,
                        steps=part,
                        first=not pieces,
                        facts=self._facts_of(section),
                    )
                )
        return pieces

    def _facts_of(self, index: int) -> Mapping[str, Any]:
        facts = self._facts.get(index)
        if facts is None:
            section = self._program.sections[index]
            facts = self._facts[index] = {
                "section": index,
                "types": section_types(section),
                "modules": list(modules_of(self._program, section, self._owners)),
                "lines": list(section_lines(self._program, section, self._weights))[:_LINES],
            }
        return facts


Noted = tuple[Spans, Piece]
"""Where a piece of a run is noted, and which."""


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
    placed: list[tuple[int, Event]] = []
    for event in ran:
        _, start, end = event
        lane = next((i for i, until in enumerate(ends) if until <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        placed.append((lane, event))
    return placed


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
        module = self._modules.get(section)
        if module is None:
            module = self._modules[section] = parsed(self._executables[section].as_text())
        return module
