"""The tasks of a data parallel run: which steps are one task, and what each reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from emulator.memory.buckets import Bucket, BufferMap
from emulator.plans.steps import StepKey
from emulator.replicas.schedule import Task
from pef_schema.program import Program, SectionKind

MOVABLE = frozenset({SectionKind.OPT, SectionKind.GRADNORM})
"""Kinds of steps that follow from reduced gradients alone."""


def divide(program: Program, buffer_map: BufferMap, steps: StepKey) -> list[StepKey]:
    """Divide steps into those that become one task each.

    Device steps between two reductions are one; steps that may move, and reductions, are alone.

    Args:
        program: The program.
        buffer_map: Its buffers, with buckets in use.
        steps: ``(section, step)`` pairs in the order of the PEF.

    Returns:
        The steps of each task; a REDUCE step that has no bucket is in none.
    """
    sections = program.sections
    buckets = {bucket.step for bucket in buffer_map.buckets}
    pieces: list[StepKey] = []
    joins = False
    for section, k in steps:
        kind = sections[section].steps[k].kind
        if kind is SectionKind.REDUCE:
            if (section, k) in buckets:
                pieces.append(((section, k),))
            joins = False
        elif kind in MOVABLE:
            pieces.append(((section, k),))
            joins = False
        elif joins:
            pieces[-1] = (*pieces[-1], (section, k))
        else:
            pieces.append(((section, k),))
            joins = True
    return pieces


def reduction(bucket: Bucket) -> Task:
    """The task that averages a bucket."""
    home = frozenset({bucket.home})
    return Task(name=bucket.name, reads=home, writes=home, net=True)


def device_task(
    program: Program,
    piece: StepKey,
    *,
    reads: Iterable[int],
    writes: Iterable[int],
    drops: Iterable[int],
    kinds: frozenset[SectionKind],
) -> Task:
    """The task that runs steps on the device.

    Args:
        program: The program.
        piece: The steps.
        reads: Buffers they take.
        writes: Buffers they give back.
        drops: Buffers whose contents are void afterwards.
        kinds: Kinds of the steps.
    """
    return Task(
        name=program.sections[piece[0][0]].name,
        reads=frozenset(reads),
        writes=frozenset(writes) | frozenset(drops),
        movable=kinds <= MOVABLE,
    )


def settles(tasks: Sequence[Task], index: int) -> bool:
    """Whether the task before a reduction that touches its bucket does not write it."""
    (home,) = tasks[index].reads
    for task in reversed(tasks[:index]):
        if home in task.reads | task.writes:
            return not task.net and home not in task.writes
    return True
