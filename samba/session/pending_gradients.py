"""Gradients that wait for an update: a second backward pass replaces them; torch would add."""

from __future__ import annotations

from emulator.plans.steps import StepKey
from pef_schema.program import Program, SectionKind
from samba.support.deviations import tell

__all__ = ["PendingGradients"]


class PendingGradients:
    """What runs of a part of the schedule leave to be updated.

    Args:
        program: The loaded program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._trained: frozenset[int] = frozenset(
            region
            for section in program.sections
            for step in section.steps
            if step.kind is SectionKind.OPT
            for region in step.reads
        )
        self._waiting: frozenset[int] = frozenset()
        self._told = False
        self._replaced: frozenset[int] = frozenset()

    def note(self, steps: StepKey) -> bool:
        """Take note of a run: :meth:`tell` tells if it has replaced gradients not used yet.

        Args:
            steps: The steps that it ran.

        Returns:
            Whether the same run may follow without a note; False if it would be told.
        """
        waiting = self._waiting
        for section, number in steps:
            step = self._program.sections[section].steps[number]
            if step.kind is SectionKind.BCKWD:
                replaced = self._trained.intersection(step.writes).difference(step.accumulates)
                if not self._told:
                    self._replaced |= replaced & waiting
                waiting |= self._trained.intersection(step.writes)
            elif step.kind is SectionKind.OPT:
                waiting = waiting.difference(step.reads)
            elif step.kind is SectionKind.ZEROGRAD:
                waiting = waiting.difference(step.writes)
        self._waiting = waiting
        return self._told or bool(self._replaced) or not waiting

    def tell(self) -> None:
        """Tell, once, of gradients that a run has replaced and no update has used."""
        replaced = self._replaced
        if self._told or not replaced:
            return
        self._told = True
        first = self._program.regions[min(replaced)].name
        tell(
            "replaced-gradients",
            f"BCKWD replaces {len(replaced)} gradients that no OPT has used ({first} and others): "
            "torch would add to them. session.compile(is_split_batch=True) makes a PEF whose "
            "gradients add up until ZEROGRAD",
        )
