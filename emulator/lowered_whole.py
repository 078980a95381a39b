"""All that a program can be asked to run, lowered once, to find what cannot be."""

from __future__ import annotations

from dataclasses import replace

from emulator.device import Device
from emulator.plans.steps import all_steps
from pef_schema.program import Program, Role


def lower_everything(program: Program) -> None:
    """Open a device and lower every section and every schedule of a program.

    Each is lowered as it first runs, and as it runs where the host has set everything that it can:
    gradients of outputs, momentum, dropout rates. Nothing is compiled or run.

    Args:
        program: A verified program.

    Raises:
        CannotRun: If the program has parts that no device can run.
        LoweringError: If a node cannot be lowered; it names the node and its line.
        PlanError: If steps cannot be lowered for another reason.
        OutOfMemory: If the program needs more memory than the device may take.
    """
    device = Device(program)
    seeded = frozenset(
        i for i, region in enumerate(program.regions) if region.role is Role.OUTPUT_GRADIENT
    )
    everything = replace(
        device.variant, seeded=seeded, no_momentum=frozenset(), no_dropout=frozenset()
    )
    plans = [
        tuple((index, k) for k in range(len(section.steps)))
        for index, section in enumerate(program.sections)
        if section.twin == index  # those of one structure are lowered alike
    ]
    plans += [all_steps(program, graph) for graph in range(len(program.graphs))]
    for steps in dict.fromkeys(plans):
        for variant in dict.fromkeys((device.variant, everything)):
            device.lower(steps, variant)
