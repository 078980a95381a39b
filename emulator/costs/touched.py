"""The memory that steps touch when they run as one executable, without jax.

:mod:`emulator.plans.footprint` says the same of a plan; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from emulator.costs.updates import keeps_no_momentum
from pef_schema.optimizer_rules import idle_states
from pef_schema.program import Program, Role, SectionKind, Step

__all__ = ["Readers", "Touched", "inside", "readers_of", "resting_optimizers", "touched", "unused"]

Readers = Mapping[int, Sequence[int]]
"""By region: steps that read it, told apart by :func:`id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The regions that an executable takes and gives.

    Args:
        takes: Regions it takes: those it reads, and those whose memory it writes anew.
        gives: Regions it gives back.
        inside: Transient regions that it writes and nobody outside can still need.
    """

    takes: frozenset[int]
    gives: frozenset[int]
    inside: frozenset[int]


def readers_of(program: Program) -> Readers:
    """The steps that read each transient region, told apart by :func:`id`."""
    found: dict[int, list[int]] = {}
    for section in program.sections:
        for step in section.steps:
            for r in step.reads:
                if program.regions[r].role.is_transient:
                    found.setdefault(r, []).append(id(step))
    return found


def resting_optimizers(program: Program) -> frozenset[int]:
    """Optimizers that start without momentum, whose buffers nothing touches."""
    return frozenset(
        i for i, one in enumerate(program.optimizers) if keeps_no_momentum(program, one)
    )


def unused(
    program: Program,
    step: Step,
    *,
    seeded: Collection[int] = (),
    resting: Collection[int] | None = None,
) -> set[int]:
    """Regions among a step's own that it neither reads nor writes.

    Args:
        program: The program.
        step: The step.
        seeded: Regions of gradients of outputs that the host has written; the others are ones or
            nothing, and cost nothing.
        resting: Optimizers without momentum; None for those of :func:`resting_optimizers`.
    """
    regions = program.regions
    found = {r for r in step.reads if regions[r].role is Role.OUTPUT_GRADIENT and r not in seeded}
    if step.kind is SectionKind.OPT:
        rest = resting_optimizers(program) if resting is None else resting
        for index in step.optimizers:
            if index in rest:
                found |= idle_states(program.optimizers[index])
    return found


def inside(
    program: Program,
    steps: Sequence[Step],
    reads: Set[int],
    written: Mapping[int, int],
    readers: Readers,
) -> set[int]:
    """Transient regions that nobody outside the steps can still need.

    Who adds to a region reads it, too, and may be the last to write it: what it reads then is of
    the same steps.

    Args:
        program: The program.
        steps: Steps in the order to run.
        reads: Regions whose contents from before the steps are read.
        written: The position of the last step that writes, by region.
        readers: What :func:`readers_of` says.
    """
    last = {id(step): position for position, step in enumerate(steps)}
    return {
        r
        for r, position in written.items()
        if program.regions[r].role.is_transient
        and (
            all(last.get(reader, -1) > position for reader in readers.get(r, ()))
            or (r not in reads and all(reader in last for reader in readers.get(r, ())))
        )
    }


def touched(
    program: Program,
    steps: Sequence[Step],
    *,
    seeded: Collection[int] = (),
    resting: Collection[int] | None = None,
) -> Touched:
    """Find the regions that steps take and give as one executable.

    Args:
        program: The program.
        steps: Steps in the order to run.
        seeded, resting: As :func:`unused` takes them.
    """
    reads: set[int] = set()
    written: dict[int, int] = {}
    for position, step in enumerate(steps):
        left = unused(program, step, seeded=seeded, resting=resting)
        reads |= set(step.reads) - left - written.keys()
        written.update(dict.fromkeys(set(step.writes) - left, position))
    dropped = inside(program, steps, reads, written, readers_of(program))
    gives = written.keys() - dropped
    overwritten = {r for r in gives if not program.regions[r].role.is_transient}
    return Touched(
        takes=frozenset(reads | overwritten), gives=frozenset(gives), inside=frozenset(dropped)
    )
