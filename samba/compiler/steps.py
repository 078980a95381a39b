"""The steps of one graph, with what they read and write, in the order of a full run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import SectionKind, Step
from samba.compiler.buckets import GradientBucket
from samba.compiler.options import CompileOptions
from samba.compiler.placed import PlacedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSteps:
    """The steps of one section, before sections are numbered.

    Args:
        name: Name of the section.
        steps: One step, or FWD and BCKWD together under spatial mapping.
    """

    name: str
    steps: tuple[Step, ...]


def section_steps(
    placed: PlacedGraph,
    buckets: Sequence[GradientBucket],
    optimizers: Sequence[NamedSteps],
    options: CompileOptions,
) -> list[NamedSteps]:
    """Write down a graph's sections in the order in which a full run calls them.

    Args:
        placed: The graph with all its regions.
        buckets: Gradients that are reduced together.
        optimizers: The sections of its optimizers.
        options: Settings.
    """
    found: list[NamedSteps] = []
    adding = set(placed.weight_gradients()) if options.accumulate else set[int]()
    if adding:
        zero = Step(kind=SectionKind.ZEROGRAD, writes=tuple(sorted(adding)))
        found.append(NamedSteps(name="zerograd", steps=(zero,)))
    forward = [_forward(placed, section) for section in range(len(placed.graph.sections))]
    backward = _backwards(placed, adding) if any(placed.graph.grads) else {}
    reduces = {
        s: [_reduce(n, b) for n, b in enumerate(buckets) if b.section == s] for s in backward
    }
    if options.mapping == "spatial" and backward:
        found.append(NamedSteps(name="fwd_bckwd_0", steps=(forward[0], backward[0])))
        found += reduces[0]
    else:
        found += [NamedSteps(name=f"fwd_{s}", steps=(step,)) for s, step in enumerate(forward)]
        for s, step in backward.items():
            found.append(NamedSteps(name=f"bckwd_{s}", steps=(step,)))
            found += reduces[s]
    return [*found, *optimizers]


def _forward(placed: PlacedGraph, section: int) -> Step:
    graph, values = placed.graph, placed.values
    nodes, cut = graph.traced.nodes, graph.sections[section]
    produced = {v for i in cut for v in nodes[i].outputs}
    reads = {values[v].region for i in cut for v in nodes[i].refs() if v not in produced}
    writes = {values[v].region for v in produced if v >= 0 and values[v].region >= 0}
    for output, writer in zip(placed.outputs, placed.output_writers, strict=True):
        if section == writer:
            writes.add(output.region)
            if output.value not in produced:
                reads.add(values[output.value].region)
    for update, writer in zip(placed.updates, placed.update_writers, strict=True):
        if section == writer:
            writes.add(update.region)
            if update.value not in produced:
                reads.add(values[update.value].region)
    return Step(
        kind=SectionKind.FWD,
        graph=graph.index,
        nodes=tuple(cut),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
    )


def _backwards(placed: PlacedGraph, adding: set[int]) -> dict[int, Step]:
    """The mirror of every forward section, last first.

    The first section that writes a gradient replaces it and later ones add to it; those in
    ``adding`` are added to by all.
    """
    graph, values = placed.graph, placed.values
    nodes, written = graph.traced.nodes, set(adding)
    steps: dict[int, Step] = {}
    for section in reversed(range(len(graph.sections))):
        need = placed.needs[section]
        if not need.nodes:
            continue
        produced = {v for i in graph.sections[section] for v in nodes[i].outputs}
        reads = {values[v].region for v in need.reads}
        for v in produced:
            if v >= 0 and values[v].grad_region >= 0:
                reads.add(values[v].grad_region)
        reads |= {
            o.grad_region for o in placed.outputs if o.value in produced and o.grad_region >= 0
        }
        writes = {
            values[v].grad_region
            for i in need.nodes
            for v in nodes[i].refs()
            if v not in produced and graph.grads[v]
        }
        accumulates = writes & written
        written |= writes
        steps[section] = Step(
            kind=SectionKind.BCKWD,
            graph=graph.index,
            nodes=need.nodes,
            recompute=need.recompute,
            reads=tuple(sorted(reads | accumulates)),
            writes=tuple(sorted(writes)),
            accumulates=tuple(sorted(accumulates)),
        )
    return steps


def _reduce(number: int, bucket: GradientBucket) -> NamedSteps:
    step = Step(kind=SectionKind.REDUCE, reads=bucket.regions, writes=bucket.regions)
    return NamedSteps(name=f"reduce_{number}", steps=(step,))
