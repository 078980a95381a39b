"""The memory that a list of steps touches: first by region, then by the buffers that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from emulator.lowering.variant import Variant
from emulator.memory.buckets import BufferMap
from emulator.op_facts.names import is_held
from emulator.plans.step_choice import StepKey
from pef_schema.optimizer_rules import idle_states
from pef_schema.program import Program, Role, SectionKind, Step


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
    for position, (s, k) in enumerate(steps):
        step = program.sections[s].steps[k]
        unused = _unused(program, step, variant)
        reads |= set(step.reads) - unused - written.keys()
        written.update(dict.fromkeys(set(step.writes) - unused, position))
    if any(is_held(program, region, variant.checks) for region in written):
        # What a check found before these steps holds their updates back, too.
        reads |= variant.checks
    return Footprint(
        reads=frozenset(reads),
        writes=frozenset(written),
        drops=_drops(program, steps, reads, written),
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


def _unused(program: Program, step: Step, variant: Variant) -> set[int]:
    """Regions among a step's own that it neither reads nor writes under a variant."""
    unused = {
        r
        for r in step.reads
        if program.regions[r].role is Role.OUTPUT_GRADIENT and r not in variant.seeded
    }
    for index in step.optimizers:
        if index in variant.no_momentum and step.kind is SectionKind.OPT:
            unused |= idle_states(program.optimizers[index])
    return unused


def _drops(
    program: Program,
    steps: Sequence[tuple[int, int]],
    reads: Set[int],
    written: Mapping[int, int],
) -> frozenset[int]:
    """Transient regions that nobody outside the steps can still need.

    Who adds to a region reads it, too, and may be the last to write it: what it reads then is of
    the same steps.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs in the order to run.
        reads: Regions whose contents from before the steps are read.
        written: The position of the last step that writes, by region.

    Returns:
        The regions.
    """
    readers: dict[int, set[tuple[int, int]]] = {}
    for s, section in enumerate(program.sections):
        for k, step in enumerate(section.steps):
            for r in step.reads:
                if program.regions[r].role.is_transient:
                    readers.setdefault(r, set()).add((s, k))
    among = set(steps)
    return frozenset(
        r
        for r, position in written.items()
        if program.regions[r].role.is_transient
        and (
            readers.get(r, set()) <= set(steps[position + 1 :])
            or (r not in reads and readers[r] <= among)
        )
    )
