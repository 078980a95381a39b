"""The memory that a list of steps touches: first by region, then by the buffers that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.costs.touched import inside, readers_of, unused
from emulator.lowering.variant import Variant
from emulator.memory.buckets import BufferMap
from emulator.memory.pool import Placement
from emulator.op_facts.names import is_held
from emulator.plans.steps import StepKey
from pef_schema.program import Program, Step
from pef_schema.structure import Structures


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The regions that steps touch.

    Args:
        reads: Regions whose contents from before the steps are read.
        writes: Regions that are written.
        drops: Transient ones among ``writes`` that nobody outside the steps can still need.
    """

    reads: frozenset[int]
    writes: frozenset[int]
    drops: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The buffers that an executable takes and gives back.

    A buffer's number is that of its region, or that of a bucket of regions, see
    ``emulator.memory.buckets``.

    Args:
        takes: Buffers it takes, in order; the first ``donated`` of them are consumed.
        gives: Buffers it gives back, in order.
        donated: How many of ``takes`` are donated.
        overwritten: Those of ``takes`` whose contents do not matter.
        checks: Transient regions it takes, which an earlier run must have left.
    """

    takes: tuple[int, ...]
    gives: tuple[int, ...]
    donated: int
    overwritten: frozenset[int]
    checks: tuple[int, ...]


def footprint(program: Program, steps: StepKey, variant: Variant) -> Footprint:
    """Find the regions that steps touch.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What the steps are specialised for.

    Returns:
        The regions.
    """
    reads: set[int] = set()
    written: dict[int, int] = {}
    chosen = [program.sections[s].steps[k] for s, k in steps]
    for position, step in enumerate(chosen):
        idle = unused(program, step, seeded=variant.seeded, resting=variant.no_momentum)
        reads |= set(step.reads) - idle - written.keys()
        written.update(dict.fromkeys(set(step.writes) - idle, position))
    if any(is_held(program, region, variant.checks) for region in written):
        # What a check found before these steps holds their updates back, too.
        reads |= variant.checks
    return Footprint(
        reads=frozenset(reads),
        writes=frozenset(written),
        drops=frozenset(inside(program, chosen, reads, written, readers_of(program))),
    )


def signature(program: Program, buffer_map: BufferMap, touched: Footprint) -> Signature:
    """Find the buffers that an executable of steps takes and gives back.

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        touched: The regions that the steps touch.

    Returns:
        The buffers, in orders that let each result take the memory of its predecessor.
    """
    changed = {buffer_map.home(r) for r in touched.writes - touched.drops}
    inputs = {buffer_map.home(r) for r in touched.reads}
    for home in changed:
        bucket = buffer_map.bucket(home)
        if bucket is not None and not touched.writes >= set(bucket.regions):
            inputs.add(home)  # the rest of the bucket stays as it is
    # What is overwritten is given away even if it is not read: its memory holds the new contents.
    overwritten = {
        home
        for home in changed - inputs
        if not program.regions[buffer_map.first_region(home)].role.is_transient
    }
    donated = sorted(overwritten | inputs & changed)
    takes = (*donated, *sorted(inputs - changed))
    return Signature(
        takes=takes,
        # jax pairs donated arguments with results of their form in order: the same order makes
        # each buffer its own successor. Another pairing costs a copy of every weight in a step.
        gives=(*donated, *sorted(changed - set(donated))),
        donated=len(donated),
        overwritten=frozenset(overwritten),
        checks=tuple(
            [r for r in takes if r in touched.reads and program.regions[r].role.is_transient]
        ),
    )


class SharedExecutables:
    """Finds for a section the one whose executable it can run.

    Args:
        program: A verified program.
        placement: Where its buffers lie.
    """

    def __init__(self, program: Program, placement: Placement) -> None:
        self._program, self._placement = program, placement
        self._map = placement.buffer_map
        self._structures: Structures | None = None
        self._regions: dict[int, tuple[int, ...]] = {}
        self._readers: dict[int, set[int]] | None = None

    def places(
        self, steps: Sequence[tuple[int, int]], variant: Variant
    ) -> tuple[int, Mapping[int, int]] | None:
        """Find where the data of a section lies, for each region of its twin.

        Args:
            steps: ``(section, step of the section)`` pairs of a plan.
            variant: What the plan is specialised for.

        Returns:
            The twin's id and the section's region for each of the twin's; None where the steps
            are not one whole section, where it is the first of its structure, or where other
            facts than its structure tell the two apart.
        """
        sections = self._program.sections
        index = steps[0][0] if steps else -1
        if index < 0 or [*steps] != [(index, k) for k in range(len(sections[index].steps))]:
            return None
        twin = sections[index].twin
        if twin == index:
            return None
        mine, theirs = self._regions_of(index), self._regions_of(twin)
        if any(r in self._map.place for r in (*mine, *theirs)):
            return None  # where a gradient lies in its bucket is part of the executable
        if self._facts(index, mine, variant) != self._facts(twin, theirs, variant):
            return None
        return twin, dict(zip(theirs, mine, strict=True))

    def _regions_of(self, index: int) -> tuple[int, ...]:
        regions = self._regions.get(index)
        if regions is None:
            if self._structures is None:
                self._structures = Structures(self._program)
            regions = self._structures.of(self._program.sections[index]).regions
            self._regions[index] = regions
        return regions

    def _facts(self, index: int, regions: Sequence[int], variant: Variant) -> tuple[object, ...]:
        """Facts that an executable depends on besides the structure, region by region."""
        readers = self._all_readers()
        program = self._program
        per_region = tuple(
            [
                (
                    r in variant.seeded,
                    r in variant.no_dropout,
                    program.regions[r].role.is_transient and readers.get(r, set()) <= {index},
                    self._placement.axis(r),
                )
                for r in regions
            ]
        )
        idle = [
            i in variant.no_momentum for s in program.sections[index].steps for i in s.optimizers
        ]
        return per_region, tuple(idle)

    def _all_readers(self) -> dict[int, set[int]]:
        """Sections that read each transient region: without another one it is dropped."""
        if self._readers is None:
            self._readers = {}
            for index, section in enumerate(self._program.sections):
                for step in section.steps:
                    self._note(step, index, self._readers)
        return self._readers

    def _note(self, step: Step, index: int, readers: dict[int, set[int]]) -> None:
        for r in step.reads:
            if self._program.regions[r].role.is_transient:
                readers.setdefault(r, set()).add(index)
