"""The memory of a program along its schedules, with the modules and lines of what lies there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.costs.buffers import Buffer
from emulator.costs.memory import MemoryNeed, Moment, memory_need, schedule_steps
from pef_schema.program import Program, Role
from pef_schema.program_facts import owners, plain_name, section_types

FORMAT, VERSION = "samba.memory", 1

_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.GRADIENT, Role.BUFFER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a schedule.

    Args:
        call_id: Its id.
        section: Its section.
        highest: Index of the first moment within it with most memory; -1 if it computes nothing.
    """

    call_id: int
    section: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMemory:
    """A full run of one graph as one executable.

    Args:
        schedule: Index of its schedule.
        graph: Name of the graph.
        need: What it takes.
        calls: Its calls.
        call_of_step: For each step of it the position of its call.
        untouched: Bytes of regions that keep something and that it does not touch.
    """

    schedule: int
    graph: str
    need: MemoryNeed
    calls: tuple[Call, ...]
    call_of_step: tuple[int, ...]
    untouched: int

    def call_at(self, moment: int) -> Call | None:
        """The call during which a moment is; None for -1."""
        if moment < 0:
            return None
        return self.calls[self.call_of_step[self.need.moments[moment].step]]


def schedule_memory(program: Program, schedule: int) -> ScheduleMemory:
    """Predict the memory along a schedule.

    Args:
        program: The program.
        schedule: Index of the schedule.
    """
    entry = program.schedules[schedule]
    need = memory_need(program, schedule_steps(program, schedule))
    call_of_step = [
        position
        for position, call in enumerate(entry.calls)
        for _ in program.sections[call.section].steps
    ]
    highest = [-1] * len(entry.calls)
    for at, moment in enumerate(need.moments):
        call = call_of_step[moment.step]
        if highest[call] < 0 or moment.total > need.moments[highest[call]].total:
            highest[call] = at
    persistent = sum(r.nbytes for r in program.regions if not r.role.is_transient)
    return ScheduleMemory(
        schedule=schedule,
        graph=program.graphs[entry.graph].name,
        need=need,
        calls=tuple(
            Call(call_id=call.call_id, section=call.section, highest=highest[position])
            for position, call in enumerate(entry.calls)
        ),
        call_of_step=tuple(call_of_step),
        untouched=persistent - need.kept,
    )


class Places:
    """Modules and lines of what lies in memory.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._owners = owners(program)
        self._lines: dict[int, tuple[str, str]] = {}
        for graph in program.graphs:
            for node in graph.nodes:
                for value in node.refs():
                    of = graph.values[value]
                    for region in (of.region, of.grad_region):
                        self._lines.setdefault(region, (node.module, node.source))
            makers = {v: node for node in graph.nodes for v in node.outputs if v >= 0}
            for output in graph.outputs:
                node = makers.get(output.value)
                if node is not None:
                    for region in (output.region, output.grad_region):
                        self._lines.setdefault(region, (node.module, node.source))
        for optimizer in program.optimizers:
            for param in optimizer.params:
                place = self._lines.get(param.weight)
                if place is not None:
                    for state in (*param.states, param.grad):
                        self._lines.setdefault(state, place)

    def of(self, buffer: Buffer) -> tuple[str, str]:
        """Module path and ``file:line`` of something alive, each empty if there is none.

        For memory it is the first place that reads it.

        Args:
            buffer: What is alive.
        """
        if buffer.node >= 0:
            node = self._program.graphs[buffer.graph].nodes[buffer.node]
            return node.module, node.source
        module, line = self._lines.get(buffer.region, ("", "")) if buffer.region >= 0 else ("", "")
        named = self._owners.get(buffer.region, ()) if buffer.role in _OF_WEIGHTS else ()
        return (named[0] if named else module), line

    def at(self, moment: Moment) -> tuple[str, str, str]:
        """Operation, module and line of what is computed; all empty for updates of regions.

        Args:
            moment: The moment.
        """
        if moment.node < 0:
            return "", "", ""
        node = self._program.graphs[moment.graph].nodes[moment.node]
        return plain_name(node.op), node.module, node.source


def as_dict(program: Program, memory: Sequence[ScheduleMemory], *, pef: str = "") -> dict[str, Any]:
    """Memory along schedules as plain data, for JSON; docs/run.md describes the keys.

    Args:
        program: The program.
        memory: That of its schedules.
        pef: Its file.
    """
    places = Places(program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "pef": pef,
        "program": program.name,
        "graphs": [
            {**graph_as_dict(program, one, places), "moments": _all(one, places)} for one in memory
        ],
    }


def graph_as_dict(program: Program, one: ScheduleMemory, places: Places) -> dict[str, Any]:
    """Memory along one schedule as plain data: its calls at their highest moments, and its peak.

    Args:
        program: The program.
        one: The schedule.
        places: The places of the program.
    """
    need = one.need
    base = need.peak - need.temp
    highest = need.highest
    call = one.call_at(highest)
    return {
        "name": one.graph,
        "peak_bytes": need.peak,
        "argument_bytes": need.argument,
        "output_bytes": need.output,
        "alias_bytes": need.alias,
        "temp_bytes": need.temp,
        "untouched_bytes": one.untouched,
        "outside": {role.name.lower(): size for role, size in need.outside},
        "calls": [
            {
                "call_id": each.call_id,
                "section": each.section,
                "name": program.sections[each.section].name,
                "types": section_types(program.sections[each.section]).split("+"),
                **_moment(need, each.highest, base),
            }
            for each in one.calls
        ],
        "peak": {
            "call_id": None if call is None else call.call_id,
            **_place(need, highest, places),
            **_moment(need, highest, base),
            "alive": [
                {
                    "name": buffer.name,
                    "role": buffer.role.name.lower(),
                    "bytes": buffer.nbytes,
                    "inside": buffer.region < 0,
                    **dict(zip(("module", "line"), places.of(buffer), strict=True)),
                }
                for buffer in need.alive(program, highest)
            ],
        },
    }


def _all(one: ScheduleMemory, places: Places) -> list[dict[str, Any]]:
    need = one.need
    return [
        {
            "call_id": one.calls[one.call_of_step[moment.step]].call_id,
            **_place(need, at, places),
            **_moment(need, at, need.peak - need.temp),
        }
        for at, moment in enumerate(need.moments)
    ]


def _place(need: MemoryNeed, at: int, places: Places) -> dict[str, Any]:
    if at < 0:
        return {"node": None, "backward": False, "operation": "", "module": "", "line": ""}
    moment = need.moments[at]
    operation, module, line = places.at(moment)
    return {
        "node": moment.node if moment.node >= 0 else None,
        "backward": moment.backward,
        "operation": operation,
        "module": module,
        "line": line,
    }


def _moment(need: MemoryNeed, at: int, base: int) -> dict[str, Any]:
    if at < 0:
        return {"bytes": base, "inside": {}, "scratch_bytes": 0}
    moment = need.moments[at]
    return {
        "bytes": base + moment.total,
        "inside": {role.name.lower(): size for role, size in moment.inside},
        "scratch_bytes": moment.scratch,
    }
