"""The program of graphs: steps with what they read and write, sections, and schedules of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import (
    Call,
    DType,
    Graph,
    Optimizer,
    Program,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
)
from pef_schema.structure import with_twins
from samba.compiler.optimizers import UpdatedGraph
from samba.compiler.placement import PlacedGraph, RegionTable
from samba.compiler.sections import CompileOptions
from samba.distributed.settings import DEFAULT_BUCKET_BYTES

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small, so that the network starts early in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A gradient to reduce.

    Args:
        region: Its region.
        nbytes: Its size.
        dtype: Its element type.
        section: Forward section whose mirror is the last to write it.
    """

    region: int
    nbytes: int
    dtype: DType
    section: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Gradients of one dtype that are reduced together.

    Args:
        regions: Their regions, ascending.
        section: Forward section after whose mirror all of them are there.
    """

    regions: tuple[int, ...]
    section: int


def plan_buckets(
    gradients: Sequence[Gradient],
    *,
    limit: int = DEFAULT_BUCKET_BYTES,
    first: int = FIRST_BUCKET_BYTES,
) -> tuple[GradientBucket, ...]:
    """Put gradients into buckets, in the order in which the backward pass finishes them.

    Args:
        gradients: Gradients in that order.
        limit: Bytes that a bucket may hold; one gradient that is larger has a bucket of its own.
        first: Bytes that the first bucket may hold.

    Returns:
        Buckets in the order in which they are full.

    Example:
        >>> gradients = [
        ...     Gradient(region=r, nbytes=40, dtype=DType.FLOAT32, section=3 - r) for r in range(4)
        ... ]
        >>> [b.regions for b in plan_buckets(gradients, limit=80, first=40)]
        [(0,), (1, 2), (3,)]
    """
    full: list[GradientBucket] = []
    filling: dict[DType, list[Gradient]] = {}
    started = 0

    def finish(members: list[Gradient]) -> None:
        full.append(
            GradientBucket(
                regions=tuple(sorted(g.region for g in members)),
                section=min(g.section for g in members),
            )
        )

    limits: dict[DType, int] = {}
    for gradient in gradients:
        members = filling.get(gradient.dtype)
        size = sum(g.nbytes for g in members or ())
        if members and size + gradient.nbytes > limits[gradient.dtype]:
            finish(members)
            members = None
        if not members:
            members = filling[gradient.dtype] = []
            limits[gradient.dtype] = min(first, limit) if started == 0 else limit
            started += 1
        members.append(gradient)
    for members in filling.values():
        if members:
            finish(members)
    return tuple(sorted(full, key=lambda b: -b.section))


def write_down(
    graphs: Sequence[UpdatedGraph], table: RegionTable, options: CompileOptions
) -> Program:
    """Write down graphs as a program: their sections, and a schedule for each of them.

    Args:
        graphs: The graphs.
        table: Their regions, to which the norms of gradients are added.
        options: Settings.
    """
    sections: list[Section] = []
    schedules: list[Schedule] = []
    for index, graph in enumerate(graphs):
        prefix = f"{graph.placed.graph.traced.name}__" if len(graphs) > 1 else ""
        named = _section_steps(graph, table, options)
        # Every section has one call, with its own number.
        numbers = range(len(sections), len(sections) + len(named))
        calls = tuple(Call(call_id=n, section=n) for n in numbers)
        schedules.append(Schedule(graph=index, calls=calls))
        sections += [
            Section(name=f"{prefix}{each.name}", steps=each.steps, twin=n)
            for n, each in zip(numbers, named, strict=True)
        ]
    program = Program(
        name=options.name,
        mapping=options.mapping,
        inference=options.inference,
        regions=tuple(table.regions),
        symbols=tuple(table.symbols),
        graphs=tuple(_bare_graph(graph.placed) for graph in graphs),
        optimizers=tuple(o for graph in graphs for o in graph.optimizers),
        argins=tuple(table.argins),
        sections=tuple(sections),
        schedules=tuple(schedules),
        segments=tuple(table.segments),
        metadata=tuple(sorted(options.metadata)),
    )
    return with_twins(program)


def _bare_graph(placed: PlacedGraph) -> Graph:
    traced = placed.graph.traced
    return Graph(
        name=traced.name,
        values=placed.values,
        nodes=traced.nodes,
        inputs=traced.inputs,
        outputs=placed.outputs,
        updates=placed.updates,
        gradients=traced.gradients,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedSteps:
    """The steps of one section, before sections are numbered.

    Args:
        name: Name of the section.
        steps: One step, or FWD and BCKWD together under spatial mapping.
    """

    name: str
    steps: tuple[Step, ...]


def _section_steps(
    updated: UpdatedGraph, table: RegionTable, options: CompileOptions
) -> list[_NamedSteps]:
    """The sections of a graph in the order in which a full run calls them."""
    placed = updated.placed
    buckets: tuple[GradientBucket, ...] = ()
    if options.data_parallel:
        buckets = _gradient_buckets(placed, table, options.bucket_bytes)
    steps: list[_NamedSteps] = []
    adding = set(placed.weight_gradients()) if options.accumulate else set[int]()
    if adding:
        zero = Step(kind=SectionKind.ZEROGRAD, writes=tuple(sorted(adding)))
        steps.append(_NamedSteps(name="zerograd", steps=(zero,)))
    forward = [_forward(placed, section) for section in range(len(placed.graph.sections))]
    backward = _backwards(placed, adding) if any(placed.graph.grads) else {}
    reduces = {
        s: [_reduce(n, b) for n, b in enumerate(buckets) if b.section == s] for s in backward
    }
    if options.mapping == "spatial" and backward:
        steps.append(_NamedSteps(name="fwd_bckwd_0", steps=(forward[0], backward[0])))
        steps += reduces[0]
    else:
        steps += [_NamedSteps(name=f"fwd_{s}", steps=(step,)) for s, step in enumerate(forward)]
        for s, step in backward.items():
            steps.append(_NamedSteps(name=f"bckwd_{s}", steps=(step,)))
            steps += reduces[s]
    return [*steps, *_optimizer_steps(updated, buckets, table)]


def _gradient_buckets(
    placed: PlacedGraph, table: RegionTable, limit: int
) -> tuple[GradientBucket, ...]:
    """The gradients of a graph's weights in buckets, in the order in which these are full."""
    gradients = [
        Gradient(
            region=grad,
            nbytes=table.regions[grad].nbytes,
            dtype=table.regions[grad].dtype,
            section=placed.last_writers[weight],
        )
        for grad, weight in sorted(placed.weight_gradients().items())
    ]
    return plan_buckets(gradients, limit=limit)


def _forward(placed: PlacedGraph, section: int) -> Step:
    graph, values = placed.graph, placed.values
    nodes, cut = graph.traced.nodes, graph.sections[section]
    produced = {v for i in cut for v in nodes[i].outputs}
    reads = {values[v].region for i in cut for v in nodes[i].refs() if v not in produced}
    writes = {values[v].region for v in produced if v >= 0 and values[v].region >= 0}
    for output, writer in zip(placed.outputs, placed.boundary.output_writers, strict=True):
        if section == writer:
            writes.add(output.region)
            if output.value not in produced:
                reads.add(values[output.value].region)
    for update, writer in zip(placed.updates, placed.boundary.update_writers, strict=True):
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
        need = placed.boundary.needs[section]
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


def _reduce(number: int, bucket: GradientBucket) -> _NamedSteps:
    step = Step(kind=SectionKind.REDUCE, reads=bucket.regions, writes=bucket.regions)
    return _NamedSteps(name=f"reduce_{number}", steps=(step,))


def _optimizer_steps(
    updated: UpdatedGraph, buckets: Sequence[GradientBucket], table: RegionTable
) -> list[_NamedSteps]:
    """The sections of optimizers: first all norms, then all updates.

    The groups of one optimizer are clipped and updated together. An OPT section is made for each
    bucket, so that it need not wait for the others; an optimizer that clips needs all gradients and
    has one.
    """
    groups, optimizers = updated.groups, updated.optimizers
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group.owner, []).append(i)
    norms: list[_NamedSteps] = []
    updates: list[_NamedSteps] = []
    for together in members.values():
        limit = groups[together[0]].max_grad_norm
        name = optimizers[together[0]].name
        if limit is not None:
            norm = _gradnorm(float(limit), together, optimizers, table)
            norms.append(_NamedSteps(name=f"gradnorm_{name}", steps=(norm,)))
        parts = _opts(together, optimizers, buckets if limit is None else ())
        for number, part in enumerate(parts):
            suffix = f"_{number}" if len(parts) > 1 else ""
            updates.append(_NamedSteps(name=f"opt_{name}{suffix}", steps=(part,)))
    return [*norms, *updates]


_WIDE = frozenset({DType.FLOAT64, DType.COMPLEX128})
"""Types of gradients whose norm is of 64 bits."""


def _gradnorm(
    limit: float, members: Sequence[int], optimizers: Sequence[Optimizer], table: RegionTable
) -> Step:
    grads = {p.grad for i in members for p in optimizers[i].params}
    wide = any(table.regions[grad].dtype in _WIDE for grad in grads)
    dtype = DType.FLOAT64 if wide else DType.FLOAT32
    norm = table.add(f"{optimizers[members[0]].name}__grad_norm", (), dtype, Role.METRIC)
    return Step(
        kind=SectionKind.GRADNORM,
        optimizers=tuple(members),
        max_norm=limit,
        reads=tuple(sorted(grads)),
        writes=tuple(sorted(grads | {norm})),
    )


def _opts(
    members: Sequence[int], optimizers: Sequence[Optimizer], buckets: Sequence[GradientBucket]
) -> list[Step]:
    """Make one step for all parameters, or one for those of each bucket."""
    sets = [frozenset(bucket.regions) for bucket in buckets]
    touched = [
        [i for i in members if any(p.grad in grads for p in optimizers[i].params)] for grads in sets
    ]
    if sum(map(bool, touched)) < 2:
        return [_opt(members, members, optimizers, None)]
    # The last step that uses an optimizer advances its count; the others only read it.
    counts = {i: n for n, used in enumerate(touched) for i in used}
    return [
        _opt(used, [i for i in used if counts[i] == n], optimizers, grads)
        for n, (used, grads) in enumerate(zip(touched, sets, strict=True))
        if used
    ]


def _opt(
    members: Sequence[int],
    counting: Sequence[int],
    optimizers: Sequence[Optimizer],
    grads: frozenset[int] | None,
) -> Step:
    """An update of the parameters whose gradients are among ``grads``; None for all."""
    reads: set[int] = set()
    writes: set[int] = set()
    for i in members:
        optimizer = optimizers[i]
        for p in optimizer.params:
            if grads is None or p.grad in grads:
                reads |= {p.weight, p.grad, *p.states}
                writes |= {p.weight, *p.states}
        reads |= {region for _, region in optimizer.argins}
        if optimizer.step >= 0:
            reads.add(optimizer.step)
            if i in counting:
                writes.add(optimizer.step)
    return Step(
        kind=SectionKind.OPT,
        optimizers=tuple(members),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
    )
