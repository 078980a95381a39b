"""What steps touch when they run as one executable, and what its updates compute, without jax."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from emulator.op_facts.flops import Flops
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.optimizer_states import idle_states
from pef_schema.program import Optimizer, Program, Role, SectionKind, Step

_NORM_PER_ELEMENT = 3
"""Of a gradient whose norm is limited: its square, the sum, the product with the factor."""


def keeps_no_momentum(program: Program, optimizer: Optimizer) -> bool:
    """Whether an optimizer starts without momentum: its buffers are then neither read nor written.

    Args:
        program: The program, whose argins have the momentum.
        optimizer: The optimizer.
    """
    if "momentum" not in OPTIMIZER_RULES[optimizer.kind].argins:
        return False
    region = dict(optimizer.argins).get("momentum", -1)
    return all(argin.default == 0 for argin in program.argins if argin.region == region)


def update_flops(program: Program, step: Step) -> Flops:
    """What a step takes that is of no graph: ZEROGRAD, REDUCE, GRADNORM, OPT.

    Args:
        program: The program.
        step: The step.

    Returns:
        Its operations.
    """
    if step.kind is SectionKind.GRADNORM:
        elements = sum(
            math.prod(program.regions[r].shape)
            for r in step.reads
            if program.regions[r].role is Role.GRADIENT
        )
        return Flops(other=_NORM_PER_ELEMENT * elements)
    if step.kind is not SectionKind.OPT:
        return Flops()
    written, other = set(step.writes), 0
    for index in step.optimizers:
        optimizer = program.optimizers[index]
        elements = sum(
            math.prod(program.regions[p.weight].shape)
            for p in optimizer.params
            if p.weight in written
        )
        other += _per_element(program, optimizer) * elements
    return Flops(other=other)


def _per_element(program: Program, optimizer: Optimizer) -> int:
    rule, options = OPTIMIZER_RULES[optimizer.kind], dict(optimizer.options)
    more = sum(count for name, count in rule.option_flops.items() if options.get(name))
    more += 1 if options.get("maximize") else 0
    if rule.momentum_flops and not keeps_no_momentum(program, optimizer):
        more += rule.momentum_flops + (2 if options.get("nesterov") else 0)
    return rule.flops + more


Readers = Mapping[int, Sequence[int]]
"""By region: steps that read it, told apart by :func:`id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The regions that an executable takes and gives.

    Args:
        takes: Regions it takes: those it reads, and those whose memory it overwrites.
        gives: Regions it gives back.
        inside: Transient regions that it writes and nobody outside can still need.
    """

    takes: frozenset[int]
    gives: frozenset[int]
    inside: frozenset[int]


def readers_of(program: Program) -> Readers:
    """The steps that read each transient region, told apart by :func:`id`."""
    readers: dict[int, list[int]] = {}
    for section in program.sections:
        for step in section.steps:
            for r in step.reads:
                if program.regions[r].role.is_transient:
                    readers.setdefault(r, []).append(id(step))
    return readers


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
    idle = {r for r in step.reads if regions[r].role is Role.OUTPUT_GRADIENT and r not in seeded}
    if step.kind is SectionKind.OPT:
        rest = resting_optimizers(program) if resting is None else resting
        for index in step.optimizers:
            if index in rest:
                idle |= idle_states(program.optimizers[index])
    return idle


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
