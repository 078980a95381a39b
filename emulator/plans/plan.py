"""Plans: a list of section calls composed into one jitted, donating executable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from emulator.lowering.autodiff import backward
from emulator.lowering.node_cache import shared_forms
from emulator.lowering.section import State, Tape, Variant, forward
from emulator.lowering.update_rules import gradnorm, update, zerograd
from emulator.lowering.write_order import Readers, after_readers
from emulator.memory.buckets import BufferMap, pack, unpack
from emulator.ops.registry import load_ops
from emulator.plans.xla_options import xla_options
from pef_schema.program import Program, Role, SectionKind, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A prepared run.

    Args:
        call: The compiled executable, a function of arrays in the order of ``reads``.
        reads: Buffers it takes; the first ``donated`` of them are consumed. A buffer's number is
            that of its region, or that of a bucket of regions, see ``emulator.memory.buckets``.
        writes: Buffers it gives back, in order.
        drops: Transient regions whose contents are void afterwards.
        checks: Transient regions it takes, which an earlier run must have left.
        donated: How many of ``reads`` are donated.
        overwritten: Those of ``reads`` whose contents do not matter.
        kinds: Kinds of the steps it runs.
    """

    call: Callable[..., Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]
    checks: tuple[int, ...]
    donated: int
    overwritten: frozenset[int]
    kinds: frozenset[SectionKind]


def step_reads(program: Program, step: Step, variant: Variant) -> list[int]:
    """Regions a step reads under a variant."""
    unused = _unused(program, step, variant)
    return [r for r in step.reads if r not in unused]


def step_writes(program: Program, step: Step, variant: Variant) -> list[int]:
    """Regions a step writes under a variant."""
    unused = _unused(program, step, variant)
    return [r for r in step.writes if r not in unused]


def _unused(program: Program, step: Step, variant: Variant) -> set[int]:
    unused = {
        r
        for r in step.reads
        if program.regions[r].role is Role.OUTPUT_GRADIENT and r not in variant.seeded
    }
    for index in step.optimizers:
        if index in variant.no_momentum and step.kind is SectionKind.OPT:
            unused |= {r for p in program.optimizers[index].params for r in p.states}
            unused.add(program.optimizers[index].step)
    return unused


Tapes = dict[int, Tape]
"""By graph."""


def run_step(
    program: Program,
    step: Step,
    state: State,
    variant: Variant,
    tapes: Tapes | None = None,
    readers: Readers | None = None,
) -> State:
    """Trace one step over device memory."""
    tape = None if tapes is None else tapes.get(step.graph)
    match step.kind:
        case SectionKind.FWD:
            return forward(program, step, state, tape)
        case SectionKind.BCKWD:
            return backward(program, step, state, variant, tape, readers)
        case SectionKind.OPT:
            return update(program, step, after_readers(step, state, readers), variant)
        case SectionKind.GRADNORM:
            return gradnorm(program, step, state)
        case SectionKind.ZEROGRAD:
            return zerograd(program, step)
        case SectionKind.REDUCE:
            # One replica: the mean over replicas is the gradient itself.
            return {r: state[r] for r in step.writes}


def taped_nodes(program: Program, steps: Sequence[Step]) -> Tapes:
    """Nodes with loops that run forward and are differentiated later among the same steps."""
    ops = load_ops()
    tapes: Tapes = {}
    pending: dict[int, set[int]] = {}
    for step in steps:
        if step.kind is SectionKind.FWD:
            nodes = program.graphs[step.graph].nodes
            pending.setdefault(step.graph, set()).update(
                i for i in step.nodes if ops[nodes[i].op].loops
            )
        elif step.kind is SectionKind.BCKWD:
            for i in pending.get(step.graph, set()).intersection(step.nodes):
                tapes.setdefault(step.graph, {})[i] = None
    return tapes


def compile_plan(
    program: Program,
    buffer_map: BufferMap,
    steps: Sequence[tuple[int, int]],
    variant: Variant,
    device: Any,
) -> Plan:
    """Compose steps and compile them as one executable; takes up to seconds.

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What to specialise for.
        device: Where to run.

    Returns:
        The plan.
    """
    chosen = [program.sections[s].steps[k] for s, k in steps]
    reads: dict[int, None] = {}
    written: dict[int, int] = {}
    for position, step in enumerate(chosen):
        for r in step_reads(program, step, variant):
            if r not in written:
                reads[r] = None
        for r in step_writes(program, step, variant):
            written[r] = position
    drops = _drops(program, steps, written)
    kept = [r for r in written if r not in drops]
    changed = {buffer_map.home(r) for r in kept}
    inputs = {buffer_map.home(r) for r in reads}
    for home in changed:
        bucket = buffer_map.bucket(home)
        if bucket is not None and not written.keys() >= set(bucket.regions):
            inputs.add(home)  # the rest of the bucket stays as it is
    # What is overwritten is given away even if it is not read: its memory holds the new contents.
    overwritten = {
        home
        for home in changed - inputs
        if not program.regions[buffer_map.first_region(home)].role.is_transient
    }
    donated = sorted(overwritten | inputs & changed)
    order = (*donated, *sorted(inputs - changed))
    # jax pairs donated arguments with results of their form in order: the same order makes
    # each buffer its own successor. Another pairing costs a copy of every weight in a step.
    writes = (*donated, *sorted(changed - set(donated)))

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        given = dict(zip(order, arrays, strict=True))
        state: State = {}
        for home, array in given.items():
            bucket = buffer_map.bucket(home)
            state.update({home: array} if bucket is None else unpack(bucket, array, reads))
        state.update(dict.fromkeys(variant.no_dropout & state.keys(), 0.0))
        tapes = taped_nodes(program, chosen)
        readers: Readers = {}
        for (section, _), step in zip(steps, chosen, strict=True):
            with jax.named_scope(program.sections[section].name):
                state.update(run_step(program, step, state, variant, tapes, readers))
        results = []
        for home in writes:
            bucket = buffer_map.bucket(home)
            if bucket is None:
                results.append(state[home])
            else:
                new = {r: state[r] for r in bucket.regions if r in written}
                results.append(pack(bucket, given[home], new))
        return tuple(results)

    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = [jax.ShapeDtypeStruct(*buffer_map.form(home), sharding=sharding) for home in order]
    with jax.enable_x64(True), shared_forms():
        jitted = jax.jit(run, donate_argnums=tuple(range(len(donated))), keep_unused=True)
        executable = jitted.lower(*shapes).compile(compiler_options=xla_options(device))
    transient = [r for r in order if r in reads and program.regions[r].role.is_transient]
    return Plan(
        call=executable,
        reads=order,
        writes=writes,
        drops=tuple(sorted(drops)),
        checks=tuple(transient),
        donated=len(donated),
        overwritten=frozenset(overwritten),
        kinds=frozenset(step.kind for step in chosen),
    )


def rebind(plan: Plan, places: Mapping[int, int]) -> Plan:
    """The same executable over other memory.

    Args:
        plan: A plan over regions that have buffers of their own.
        places: Region for region of the plan.

    Returns:
        A plan that shares ``plan.call``.
    """

    def at(regions: Iterable[int]) -> tuple[int, ...]:
        return tuple([places[r] for r in regions])

    return replace(
        plan,
        reads=at(plan.reads),
        writes=at(plan.writes),
        drops=at(plan.drops),
        checks=at(plan.checks),
        overwritten=frozenset(at(plan.overwritten)),
    )


def dropped_regions(
    program: Program, steps: Sequence[tuple[int, int]], variant: Variant
) -> set[int]:
    """Transient regions that are written by some steps and needed by no others after them.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What the steps are specialised for.

    Returns:
        The regions.
    """
    written: dict[int, int] = {}
    for position, (s, k) in enumerate(steps):
        for r in step_writes(program, program.sections[s].steps[k], variant):
            written[r] = position
    return _drops(program, steps, written)


def _drops(program: Program, steps: Sequence[tuple[int, int]], written: dict[int, int]) -> set[int]:
    """Transient regions that nobody outside the plan can still need."""
    readers: dict[int, set[tuple[int, int]]] = {}
    for s, section in enumerate(program.sections):
        for k, step in enumerate(section.steps):
            for r in step.reads:
                if program.regions[r].role.is_transient:
                    readers.setdefault(r, set()).add((s, k))
    drops = set()
    for r, position in written.items():
        if program.regions[r].role.is_transient and readers.get(r, set()) <= set(
            steps[position + 1 :]
        ):
            drops.add(r)
    return drops
