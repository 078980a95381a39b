"""When each region holds something along a schedule, if its sections run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import Program, Schedule

__all__ = ["Life", "lives"]


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
