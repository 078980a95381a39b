"""What backward passes start from: gradients of outputs, written before."""

from __future__ import annotations

from collections.abc import Set

from emulator.errors import NotSeeded
from emulator.plans.step_choice import StepKey
from pef_schema.program import OutputGrad, Program, SectionKind

__all__ = ["check_seeds"]


def check_seeds(program: Program, steps: StepKey, seeded: Set[int]) -> None:
    """Refuse steps with a backward pass that would start from nothing.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs.
        seeded: Regions of outputs' gradients that were written.

    Raises:
        NotSeeded: If there is one; it names the outputs.
    """
    for s, k in steps:
        step = program.sections[s].steps[k]
        outputs = program.graphs[step.graph].outputs if step.graph >= 0 else ()
        grads = {o.grad_region for o in outputs if o.grad_region >= 0}
        read = grads.intersection(step.reads)
        if step.kind is SectionKind.BCKWD and read and not grads & seeded:
            names = [o.name for o in outputs if o.grad is OutputGrad.ONES]
            raise NotSeeded(names=names or [o.name for o in outputs if o.grad_region >= 0])
