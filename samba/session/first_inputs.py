"""Inputs that no run has been given yet: the device has those of the trace in their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from emulator.plans.steps import StepKey
from pef_schema.program import Program
from samba.session.feeding import Feed, InputSlot
from samba.support.deviations import tell

__all__ = ["FirstInputs"]


class FirstInputs:
    """Watches an input until it was given once, or a run has done without it.

    Args:
        program: The loaded program.
        slots: The inputs of a graph.

    Attributes:
        waits: Whether there is anything left to watch.
    """

    def __init__(self, program: Program, slots: Sequence[InputSlot]) -> None:
        self._program = program
        written = {r for s in program.sections for step in s.steps for r in step.writes}
        self._missing = {slot.region: slot for slot in slots if slot.region not in written}
        self.waits = bool(self._missing)

    def take(self, regions: Collection[int] | None = None) -> None:
        """Take note that inputs were given.

        Args:
            regions: Their regions; all if None.
        """
        for region in tuple(self._missing) if regions is None else regions:
            self._missing.pop(region, None)
        self.waits = bool(self._missing)

    def use(
        self, feed: Feed, left_out: Collection[int], steps: StepKey, buffers: Sequence[Any]
    ) -> None:
        """Before a run: name the inputs that it takes from the trace.

        Args:
            feed: What the run is given.
            left_out: Regions of inputs in whose place it is given None: their names are known.
            steps: Steps that it runs.
            buffers: Device memory by region.

        Raises:
            IndexOutOfRange: If such an input is used as indices and one is out of range.
        """
        self.take([region for region, _ in feed])
        if not self._missing:
            return
        sections = self._program.sections
        reads = {region for s, k in steps for region in sections[s].steps[k].reads}
        found = [slot for slot in self._missing.values() if slot.region in reads]
        for slot in found:
            if buffers[slot.region] is not None:
                for check in slot.checks:
                    check.check(np.asarray(buffers[slot.region]))
        names = [slot.name for slot in found if slot.region not in left_out]
        if names:
            tell(
                "input-of-trace",
                f"session.run() was given no {', '.join(names)}: it takes what trace_graph was "
                "given. Pass it, or None in its place where that is meant",
            )
        self.take([slot.region for slot in found])
