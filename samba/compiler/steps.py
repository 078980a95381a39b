"""The sections of one graph: the steps of each, with what they read and write."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.program import Output, Section, SectionKind, Step, Update
from samba.compiler.buckets import GradientBucket
from samba.compiler.options import CompileOptions
from samba.compiler.placement import Placement
from samba.compiler.saved import BackwardNeeds
from samba.compiler.update import OptimizerRegions


def make_sections(
    placed: Placement,
    needs: Sequence[BackwardNeeds],
    outputs: tuple[Output, ...],
    updates: tuple[Update, ...],
    buckets: tuple[GradientBucket, ...],
    optimizers: OptimizerRegions,
    options: CompileOptions,
    *,
    index: int,
    prefix: str,
) -> list[Section]:
    """Write down a graph's sections in the order in which a full run calls them.

    Args:
        placed: The graph, cut and with all its regions.
        needs: What the backward twin of each cut needs.
        outputs: Results of the graph.
        updates: State that it changes.
        buckets: Gradients that are reduced together.
        optimizers: The sections of its optimizers.
        options: Settings.
        index: Number of the graph.
        prefix: Put before the names of its sections.

    Returns:
        The sections.
    """
    steps: list[tuple[str, tuple[Step, ...]]] = []
    grads = placed.weight_gradients() if options.accumulate else set[int]()
    if grads:
        writes = tuple(sorted(grads))
        steps.append(("zerograd", (Step(kind=SectionKind.ZEROGRAD, writes=writes),)))
    forward = [_forward(placed, index, s, outputs, updates) for s in range(len(placed.cuts))]
    backward = _backwards(placed, index, needs, outputs, grads) if any(placed.grads) else {}
    reduces = {s: [n for n, b in enumerate(buckets) if b.section == s] for s in backward}
    if options.mapping == "spatial" and backward:
        steps.append(("fwd_bckwd_0", (forward[0], backward[0])))
        steps += [_reduce(n, buckets[n]) for n in reduces[0]]
    else:
        steps += [(f"fwd_{s}", (step,)) for s, step in enumerate(forward)]
        for s, step in backward.items():
            steps.append((f"bckwd_{s}", (step,)))
            steps += [_reduce(n, buckets[n]) for n in reduces[s]]
    steps += optimizers.steps
    return [
        Section(name=f"{prefix}{name}", steps=section, twin=i)
        for i, (name, section) in enumerate(steps)
    ]


def _forward(
    placed: Placement,
    graph: int,
    section: int,
    outputs: tuple[Output, ...],
    updates: tuple[Update, ...],
) -> Step:
    values, nodes, cut = placed.values, placed.traced.nodes, placed.cuts[section]
    produced = {v for i in cut for v in nodes[i].outputs}
    reads = {values[v].region for i in cut for v in nodes[i].refs() if v not in produced}
    writes = {values[v].region for v in produced if v >= 0 and values[v].region >= 0}
    for i, output in enumerate(outputs):
        home = placed.section_of.get(output.value, 0)
        if section == placed.written_at.get(i, home):
            writes.add(output.region)
            if output.value not in produced:
                reads.add(values[output.value].region)
    for update in updates:
        if update.value in produced or (section == 0 and update.value in placed.source_of):
            writes.add(update.region)
            if update.value in placed.source_of:
                reads.add(values[update.value].region)
    return Step(
        kind=SectionKind.FWD,
        graph=graph,
        nodes=tuple(cut),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
    )


def _backwards(
    placed: Placement,
    graph: int,
    needs: Sequence[BackwardNeeds],
    outputs: tuple[Output, ...],
    persistent: set[int],
) -> dict[int, Step]:
    """The mirror of every forward section, last first.

    A region's first writer replaces it, unless it is ``persistent``: then all add to it.
    """
    values, nodes = placed.values, placed.traced.nodes
    written = set(persistent)
    steps: dict[int, Step] = {}
    for section in reversed(range(len(placed.cuts))):
        need = needs[section]
        if not need.nodes:
            continue
        produced = {v for i in placed.cuts[section] for v in nodes[i].outputs}
        reads = {values[v].region for v in need.reads}
        for v in produced:
            if v >= 0 and values[v].grad_region >= 0:
                reads.add(values[v].grad_region)
        reads |= {o.grad_region for o in outputs if o.value in produced and o.grad_region >= 0}
        writes = {
            values[v].grad_region
            for i in need.nodes
            for v in nodes[i].refs()
            if v not in produced and placed.grads[v]
        }
        accumulates = writes & written
        written |= writes
        steps[section] = Step(
            kind=SectionKind.BCKWD,
            graph=graph,
            nodes=need.nodes,
            recompute=need.recompute,
            reads=tuple(sorted(reads | accumulates)),
            writes=tuple(sorted(writes)),
            accumulates=tuple(sorted(accumulates)),
        )
    return steps


def _reduce(number: int, bucket: GradientBucket) -> tuple[str, tuple[Step, ...]]:
    step = Step(kind=SectionKind.REDUCE, reads=bucket.regions, writes=bucket.regions)
    return f"reduce_{number}", (step,)
