"""Gradients of outputs that a script has set: device memory keeps them, which is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from emulator.plans.steps import StepKey
from pef_schema.program import Graph, Program, SectionKind
from samba.support.deviations import some_of, tell

__all__ = ["KeptGradients"]

Use = tuple[int, int, int]
"""A region that a step reads: the region, the section and the number of the step in it."""


class KeptGradients:
    """Which backward pass starts from a gradient that was meant for an earlier one.

    Torch's ``backward(gradient)`` holds for that call; ``output.sn_grad = ...`` and
    ``run(grad_of_outputs=...)`` write device memory, where it stays. Nothing is asked of a run as
    long as no script has set such a gradient.

    Args:
        program: The loaded program.
        graph: The graph whose outputs are meant.
        runs: Gives the number of runs that have taken place.

    Attributes:
        waits: Whether repeated runs have to be looked at.
    """

    def __init__(self, program: Program, graph: Graph, runs: Callable[[], int]) -> None:
        self._program, self._runs = program, runs
        self._names = {o.grad_region: o.name for o in graph.outputs if o.grad_region >= 0}
        self._written: dict[int, int] = {}
        """Regions that were set, with the number of runs before."""
        self._used: set[Use] = set()
        """How backward passes have started from them since."""
        self._repeated: frozenset[Use] = frozenset()
        """How a repetition of the last call would."""
        self._old: tuple[str, ...] = ()
        self._told = False
        self.waits = False

    def note_written(self, regions: Iterable[int], *, stays: bool = False) -> None:
        """Take note that gradients of outputs were set.

        Args:
            regions: Their regions; others are left out.
            stays: Whether they are meant for all runs that follow, as those of
                ``utils.init_output_grads`` are.
        """
        for region in self._names.keys() & regions:
            self._used = {use for use in self._used if use[0] != region}
            self._written.pop(region, None)
            if not stays and not self._told:
                self._written[region] = self._runs()
                self.waits = True

    def repeats_old(self) -> bool:
        """Whether a repetition of the last call would start from an old gradient, to be told."""
        runs = self._runs()
        return any(self._written.get(region, runs) < runs for region, _, _ in self._repeated)

    def note(self, steps: StepKey) -> None:
        """Take note of a run that has just taken place: :meth:`tell` tells of old gradients.

        A section that uses a gradient a second time is in another backward pass; two sections may
        be of the same one.

        Args:
            steps: The steps that it ran.
        """
        if not self._written:
            self._repeated = frozenset()
            return
        sections, before = self._program.sections, self._runs() - 1
        using = frozenset(
            (region, section, number)
            for section, number in steps
            if sections[section].steps[number].kind is SectionKind.BCKWD
            for region in self._written.keys() & sections[section].steps[number].reads
        )
        old = {
            use[0]
            for use in using
            if use in self._used or (use in self._repeated and self._written[use[0]] < before)
        }
        self._old = tuple(self._names[region] for region in sorted(old))
        self._used |= using
        self._repeated = using

    def tell(self) -> None:
        """Tell, once, that a run has started from gradients of an earlier one."""
        if self._told or not self._old:
            return
        self._told, self.waits = True, False
        self._written.clear()
        tell(
            "kept-gradient",
            f"BCKWD starts from the gradient of {some_of(self._old)} that was set for an earlier "
            "run (sn_grad or grad_of_outputs): device memory keeps it, where torch's backward() "
            "would take a new one. Set it for each run, or once for all with "
            "utils.init_output_grads",
        )
