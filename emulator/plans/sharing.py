"""Sections of one structure run the same executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emulator.lowering.variant import Variant
from emulator.memory.placement import Placement
from pef_schema.program import Program, Step
from pef_schema.structure import Structures


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
        found = self._regions.get(index)
        if found is None:
            if self._structures is None:
                self._structures = Structures(self._program)
            found = self._structures.of(self._program.sections[index]).regions
            self._regions[index] = found
        return found

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
