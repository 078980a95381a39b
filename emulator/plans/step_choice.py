"""The steps to run: the whole schedule, or the parts of it with given types."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.errors import UnknownSection
from pef_schema.program import Program, SectionKind

StepKey = tuple[tuple[int, int], ...]
"""``(section, step of the section)`` pairs in the order to run."""


def all_steps(program: Program, graph: int = 0) -> StepKey:
    """All steps of a graph's schedule.

    Args:
        program: The program.
        graph: Index of the graph.

    Returns:
        The steps in order.
    """
    return tuple(
        (call.section, k)
        for call in program.schedules[graph].calls
        for k in range(len(program.sections[call.section].steps))
    )


def find_kind(name: str) -> SectionKind | None:
    """Find a section type by its name in either case, with or without a leading ``$``.

    Args:
        name: The name.

    Returns:
        The type, None if there is no such type.
    """
    return SectionKind.__members__.get(name.upper().removeprefix("$"))


def section_kind(name: str) -> SectionKind:
    """Return the section type of a name, which may be written as for :func:`find_kind`.

    Raises:
        UnknownSection: If there is no such type.
    """
    kind = find_kind(name)
    if kind is None:
        raise UnknownSection(
            found=[name], wanted=[k.name for k in SectionKind], what="section type"
        )
    return kind


def steps_of_kinds(program: Program, names: Sequence[str], graph: int = 0) -> StepKey:
    """Steps of the given types: all of the first type, then all of the second, and so on.

    Args:
        program: The program.
        names: Section types.
        graph: Index of the graph.

    Returns:
        The steps in order; none for a type the program does not have.

    Raises:
        UnknownSection: If a type does not exist at all.
    """
    steps = all_steps(program, graph)
    return tuple(
        (s, k)
        for kind in map(section_kind, names)
        for s, k in steps
        if program.sections[s].steps[k].kind is kind
    )
