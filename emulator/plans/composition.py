"""Steps one after the other as one function of buffers, which jax can trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from emulator.lowering.autodiff import backward
from emulator.lowering.branch_checks import held_back
from emulator.lowering.index_watch import WatchedIndex
from emulator.lowering.section import State, Tape, forward
from emulator.lowering.update_rules import gradnorm, update, zerograd
from emulator.lowering.variant import Variant
from emulator.lowering.write_order import Readers, after_readers
from emulator.memory.buckets import BufferMap, pack, unpack
from emulator.ops.registry import load_ops
from emulator.plans.footprint import Footprint, Signature
from emulator.plans.steps import StepKey
from pef_schema.program import Program, SectionKind, Step

Tapes = dict[int, Tape]
"""By graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """All that the function of some steps depends on.

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What to specialise for.
        footprint: The regions that the steps touch.
        signature: The buffers that the function takes and gives back.
        watched: Indices to look at; what is found follows the buffers that it gives back.
    """

    program: Program
    buffer_map: BufferMap
    steps: StepKey
    variant: Variant
    footprint: Footprint
    signature: Signature
    watched: tuple[WatchedIndex, ...] = ()


def composed(made_of: Composition) -> Callable[..., tuple[jax.Array, ...]]:
    """The function of some steps.

    Args:
        made_of: What it depends on.

    Returns:
        A pure function from the buffers that the signature takes to those that it gives.
    """

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        buffers = dict(zip(made_of.signature.takes, arrays, strict=True))
        state = _regions_of(made_of, buffers)
        before = dict(state)
        settled = _run_steps(made_of, state)
        if checks := made_of.variant.checks & state.keys():
            changed = (made_of.footprint.writes | checks) & state.keys() - settled
            written = {region: state[region] for region in sorted(changed)}
            state.update(held_back(made_of.program, checks, before, written))
        reports = tuple([state[entry.key] for entry in made_of.watched])
        return (*_buffers_of(made_of, buffers, state), *reports)

    return run


def _regions_of(made_of: Composition, buffers: dict[int, jax.Array]) -> State:
    """Device memory by region, from buffers."""
    state: State = {}
    for home, array in buffers.items():
        bucket = made_of.buffer_map.bucket(home)
        if bucket is None:
            state[home] = array
        else:
            state.update(unpack(bucket, array, made_of.footprint.reads))
    state.update(dict.fromkeys(made_of.variant.no_dropout & state.keys(), 0.0))
    return state


def _run_steps(made_of: Composition, state: State) -> set[int]:
    """Trace all steps over device memory, which changes.

    Returns:
        Regions that updates have held back already, by all checks of branches that there are.
    """
    settled: set[int] = set()
    elsewhere: set[int] = set()
    sections, variant = made_of.program.sections, made_of.variant
    tapes = taped_nodes(made_of.program, [sections[s].steps[k] for s, k in made_of.steps])
    readers: Readers = {}
    for s, k in made_of.steps:
        section = sections[s]
        with jax.named_scope(section.name):
            step = section.steps[k]
            written = run_step(
                made_of.program, step, state, variant, tapes, readers, made_of.watched
            )
        state.update(written)
        if step.kind is SectionKind.OPT:
            settled |= written.keys()
            continue
        elsewhere |= written.keys()
        if variant.checks & written.keys():
            # What was updated before this check is held back as a whole in the end.
            elsewhere |= settled
    return settled - elsewhere


def _buffers_of(
    made_of: Composition, buffers: dict[int, jax.Array], state: State
) -> tuple[jax.Array, ...]:
    """The buffers to give back, from device memory by region."""
    results: list[jax.Array] = []
    for home in made_of.signature.gives:
        bucket = made_of.buffer_map.bucket(home)
        if bucket is None:
            results.append(state[home])
        else:
            new = {r: state[r] for r in bucket.regions if r in made_of.footprint.writes}
            results.append(pack(bucket, buffers[home], new))
    return tuple(results)


def run_step(
    program: Program,
    step: Step,
    state: State,
    variant: Variant,
    tapes: Tapes,
    readers: Readers,
    watched: Sequence[WatchedIndex] = (),
) -> State:
    """Trace one step over device memory.

    Args:
        program: The program.
        step: The step.
        state: Device memory that it reads.
        variant: What to specialise for.
        tapes: Nodes that are differentiated where they run forward.
        readers: What was computed from weights; BCKWD steps note it, OPT steps wait for it.
        watched: Indices to look at.

    Returns:
        The regions that the step writes, and what was found of indices.
    """
    tape = tapes.get(step.graph)
    match step.kind:
        case SectionKind.FWD:
            return forward(program, step, state, tape, watched)
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
