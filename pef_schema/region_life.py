"""When each region holds something along a schedule, and how many bytes that makes at each call.

Values that a section keeps to itself have no region, and so are not counted: what an executable
takes beyond its regions only the one who compiles it can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import Program, Role, Schedule

__all__ = ["Life", "Moment", "alive_at", "lives", "memory_over_time", "peak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The calls of a schedule during which a region holds something.

    Args:
        region: Index into ``Program.regions``.
        first, last: Positions in ``Schedule.calls``, both inclusive.
    """

    region: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held during one call.

    Args:
        call: Position in ``Schedule.calls``; -1 for a schedule without calls.
        section: The section that is called; -1 for none.
        bytes_by_role: Bytes of each role that there is, in the order of the roles.
        total: Bytes of all roles.
    """

    call: int
    section: int
    bytes_by_role: tuple[tuple[Role, int], ...]
    total: int


def lives(program: Program, schedule_index: int) -> tuple[Life, ...]:
    """When each region is alive along a schedule.

    Activations and cotangents live from the first call that touches them to the last; they may be
    dropped after it. All other regions keep what they hold from run to run, also those that only
    another graph uses.

    Args:
        program: The program.
        schedule_index: Index into ``Program.schedules``.

    Returns:
        A life for each region, in the order of the regions; none for an activation or a cotangent
        that the schedule does not touch, and none at all without calls.
    """
    schedule = program.schedules[schedule_index]
    end = len(schedule.calls) - 1
    if end < 0:
        return ()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, touched in enumerate(_touched(program, schedule)):
        for region in touched:
            first.setdefault(region, at)
            last[region] = at
    return tuple(
        Life(
            region=i,
            first=first[i] if region.role.is_transient else 0,
            last=last[i] if region.role.is_transient else end,
        )
        for i, region in enumerate(program.regions)
        if i in first or not region.role.is_transient
    )


def memory_over_time(program: Program, schedule_index: int) -> tuple[Moment, ...]:
    """Bytes that are held during each call of a schedule.

    Args:
        program: The program.
        schedule_index: Index into ``Program.schedules``.

    Returns:
        A moment for each call, in order.
    """
    schedule = program.schedules[schedule_index]
    count = len(schedule.calls)
    changes: dict[Role, list[int]] = {}
    for life in lives(program, schedule_index):
        region = program.regions[life.region]
        steps = changes.setdefault(region.role, [0] * (count + 1))
        steps[life.first] += region.nbytes
        steps[life.last + 1] -= region.nbytes
    held = dict.fromkeys(sorted(changes), 0)
    moments: list[Moment] = []
    for at, call in enumerate(schedule.calls):
        for role in held:
            held[role] += changes[role][at]
        moments.append(
            Moment(
                call=at,
                section=call.section,
                bytes_by_role=tuple((role, size) for role, size in held.items() if size),
                total=sum(held.values()),
            )
        )
    return tuple(moments)


def peak(program: Program, schedule_index: int) -> Moment:
    """The first moment of a schedule at which most bytes are held.

    Args:
        program: The program.
        schedule_index: Index into ``Program.schedules``.

    Returns:
        That moment; where nothing is called, one with what the program keeps anyhow.
    """
    moments = memory_over_time(program, schedule_index)
    if moments:
        return max(moments, key=lambda moment: moment.total)
    totals: dict[Role, int] = {}
    for region in program.regions:
        if not region.role.is_transient:
            totals[region.role] = totals.get(region.role, 0) + region.nbytes
    kept = tuple((role, totals[role]) for role in sorted(totals) if totals[role])
    return Moment(call=-1, section=-1, bytes_by_role=kept, total=sum(totals.values()))


def alive_at(program: Program, schedule_index: int, call: int) -> tuple[int, ...]:
    """Regions that hold something during a call, the largest first.

    Args:
        program: The program.
        schedule_index: Index into ``Program.schedules``.
        call: Position in ``Schedule.calls``.

    Returns:
        Indices into ``Program.regions``; equal sizes in the order of the regions.
    """
    found = [
        life.region for life in lives(program, schedule_index) if life.first <= call <= life.last
    ]
    return tuple(sorted(found, key=lambda region: -program.regions[region].nbytes))


def _touched(program: Program, schedule: Schedule) -> Sequence[frozenset[int]]:
    """Activations and cotangents that each call reads or writes."""
    by_section: dict[int, frozenset[int]] = {}
    found: list[frozenset[int]] = []
    for call in schedule.calls:
        touched = by_section.get(call.section)
        if touched is None:
            touched = frozenset(
                region
                for step in program.sections[call.section].steps
                for region in (*step.reads, *step.writes)
                if program.regions[region].role.is_transient
            )
            by_section[call.section] = touched
        found.append(touched)
    return found
