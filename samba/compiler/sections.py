"""Cut the forward graph into sections, and find what passes between them and to the backward pass.

* A section policy is a function from a traced graph to the node index at which each section starts;
  this is the one place to add one. Sections are runs of consecutive nodes, so a cut never makes a
  cycle between sections. All later stages start from the graph that is divided.
* A value that a gradient reads is read from its region if it has one, executed again if that is
  cheap and costs no more memory than keeping it, and saved in an activation region otherwise. What
  is made of state that the forward pass overwrites is never executed again: its region holds the
  new state by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass

from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.names import CAST_INPUT, CAST_RESULT, NEXT_SEED
from emulator.op_facts.table import op_facts
from pef_schema.errors import SambaError
from pef_schema.program import Role
from samba.compiler.gradient_flow import GradientFlow
from samba.distributed.settings import DEFAULT_BUCKET_BYTES
from samba.tracer.traced import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionedGraph(GradientFlow):
    """A traced graph, divided into sections.

    Args:
        index: Its number in the program.
        sections: Positions of its nodes, section by section.
        section_of: For each value that a node makes, the section of that node.
    """

    index: int
    sections: tuple[range, ...]
    section_of: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardNeeds:
    """The needs of the backward pass of one section.

    Args:
        nodes: Forward nodes to differentiate, in forward order.
        recompute: Forward nodes to execute again, in forward order.
        reads: Values to read from device memory.
        saves: Those of ``reads`` that the forward section must write for it.
    """

    nodes: tuple[int, ...]
    recompute: tuple[int, ...]
    reads: frozenset[int]
    saves: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The values that pass from section to section, and the sections that write outputs.

    Args:
        values: Values that a later section takes from an earlier one, ascending.
        output_writers: For each output, the section that writes its region.
        update_writers: For each update of state, the section that writes its region.
        needs: What the backward pass of each section needs.
    """

    values: tuple[int, ...]
    output_writers: tuple[int, ...]
    update_writers: tuple[int, ...]
    needs: tuple[BackwardNeeds, ...]


def find_boundary(graph: SectionedGraph) -> Boundary:
    """Find what passes from section to section.

    Args:
        graph: The graph.

    Returns:
        The values that pass, the sections that write outputs, and what each backward section reads,
        recomputes and has saved.
    """
    written = [
        *((o.value, o.region_name) for o in graph.traced.outputs),
        *((new, graph.source_of[old].region_name) for new, old in graph.traced.updates),
    ]
    writers = _writers(graph, written)
    takers = [
        *(
            (v, section)
            for section, cut in enumerate(graph.sections)
            for i in cut
            for v in graph.traced.nodes[i].refs()
        ),
        *((v, w) for (v, _), w in zip(written, writers, strict=True)),
    ]
    # Sources have regions of their own, and the advanced seed is read where it is written.
    seeds = [new for new, old in graph.traced.updates if graph.source_of[old].role is Role.SEED]
    placed = {*graph.source_of, *seeds}
    crossing = {
        v
        for v, section in takers
        if graph.section_of.get(v, section) != section and v not in placed
    }
    outputs = len(graph.traced.outputs)
    return Boundary(
        values=tuple(sorted(crossing)),
        output_writers=writers[:outputs],
        update_writers=writers[outputs:],
        needs=tuple(_section_needs(graph, s, crossing | placed) for s in graph.sections),
    )


def _writers(graph: SectionedGraph, written: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    """The section that writes each of some values to a region.

    That is the one that makes the value. Where the region is a source's too, a later one that is
    the last to read that source takes its place. Writing what is itself a source reads that source.

    Args:
        graph: The graph.
        written: Values, each with the name of its region.
    """
    names = {
        v: source.region_name
        for v, source in graph.source_of.items()
        if source.role is Role.BUFFER or graph.is_state(source)
    }
    readers: dict[str, int] = {}
    for section, cut in enumerate(graph.sections):
        for i in cut:
            for v in graph.traced.nodes[i].refs():
                if v in names:
                    readers[names[v]] = section
    while True:
        before = dict(readers)
        writers = [max(graph.section_of.get(v, 0), readers.get(name, 0)) for v, name in written]
        for (v, _), writer in zip(written, writers, strict=True):
            if v in names:
                readers[names[v]] = max(readers.get(names[v], 0), writer)
        if readers == before:
            return tuple(writers)


def _section_needs(
    graph: SectionedGraph, section: range, stored: AbstractSet[int]
) -> BackwardNeeds:
    """What the backward section of a section reads, recomputes and has saved."""
    nodes, grads, facts = graph.traced.nodes, graph.grads, op_facts()
    differentiate = tuple(
        i
        for i in section
        if any(v >= 0 and grads[v] for v in nodes[i].outputs)
        and any(grads[v] for v in nodes[i].refs())
    )
    decisions = _Decisions(graph, section, stored)
    decisions.decide(
        {
            v
            for i in differentiate
            for v in gradient_reads(nodes[i], facts[nodes[i].op], grads.__getitem__)
        }
    )
    return BackwardNeeds(
        nodes=differentiate,
        recompute=tuple(sorted(decisions.recompute)),
        reads=frozenset(decisions.reads),
        saves=frozenset(decisions.saves),
    )


class _Decisions:
    """The decisions of one section, each of which knows those before it.

    Args:
        graph: The graph.
        section: Positions of the section's nodes.
        stored: Values that are in device memory anyway.
    """

    def __init__(self, graph: SectionedGraph, section: range, stored: AbstractSet[int]) -> None:
        self._nodes, self._values = graph.traced.nodes, graph.traced.values
        self._producer = {v: i for i in section for v in self._nodes[i].outputs if v >= 0}
        self._stored, self._overwritten = stored, graph.overwritten
        self._needed: set[int] = set()
        self.reads: set[int] = set()
        self.saves: set[int] = set()
        self.recompute: set[int] = set()

    def decide(self, needed: set[int]) -> None:
        """Decide about values whose contents gradients read."""
        self._needed |= needed
        # Consumers come before producers, so that a value's inputs are judged after it.
        for value in sorted(needed, key=lambda v: (self._producer.get(v, -1), v), reverse=True):
            self._decide(value)

    def _decide(self, value: int) -> None:
        """Decide about one value, and then about those that computing it again takes."""
        work = [value]
        while work:
            v = work.pop()
            if v in self.reads:
                continue
            if self._is_at_hand(v):
                self.reads.add(v)
            elif self._producer[v] in self.recompute:
                continue
            elif self._is_worth_recomputing(v):
                inputs = set(self._nodes[self._producer[v]].refs())
                self.recompute.add(self._producer[v])
                self._needed |= inputs
                work.extend(sorted(inputs, reverse=True))
            else:
                self.reads.add(v)
                self.saves.add(v)

    def _is_at_hand(self, value: int) -> bool:
        return value in self._stored or value not in self._producer

    def _is_worth_recomputing(self, value: int) -> bool:
        """Whether a value is cheap to make of values that together are smaller than it."""
        node = self._nodes[self._producer[value]]
        if not op_facts()[node.op].cheap or not self._overwritten.isdisjoint(node.refs()):
            return False
        more = {v for v in node.refs() if v not in self._needed and not self._is_at_hand(v)}
        return sum(map(self._size, more)) < self._size(value)

    def _size(self, value: int) -> int:
        return self._values[value].nbytes


DEFAULT_SECTION_BYTES = 64 << 20
"""Bytes for an ``o3`` section. An SN10 tile holds 80 MB on chip; a power of two below it."""


class UnknownOptimLevel(SambaError):
    """The requested optimization level does not exist."""

    def __init__(self, *, found: str) -> None:
        self.found = found
        super().__init__(f"optim_level: found {found!r:.60}; expected one of {', '.join(POLICIES)}")


def cut_o0(traced: Traced, budget: int, weight_budget: int | None) -> list[int]:
    """A section per operator. The node that advances the seed stays with its successor."""
    return [i for i in range(len(traced.nodes)) if i == 0 or _may_start(traced, i)]


def _may_start(traced: Traced, i: int) -> bool:
    """False behind the advance of the seed, and between an operation and its rounding."""
    return traced.nodes[i].op != CAST_RESULT and traced.nodes[i - 1].op not in (
        NEXT_SEED,
        CAST_INPUT,
    )


def cut_o1(traced: Traced, budget: int, weight_budget: int | None) -> list[int]:
    """A section per module, or per ``op_fusion`` directive where one covers the module."""
    prefixes = {module for module, _ in traced.fusions}

    def group(module: str) -> str:
        fused = [p for p in prefixes if module == p or module.startswith(p + "__")]
        return min(fused, key=len) if fused else module

    groups = [group(node.module) for node in traced.nodes]
    return [
        i
        for i in range(len(groups))
        if i == 0 or (groups[i] != groups[i - 1] and traced.nodes[i - 1].op != NEXT_SEED)
    ]


def cut_o3(traced: Traced, budget: int, weight_budget: int | None) -> list[int]:
    """Cut where the weights and results of a section would pass ``budget`` bytes, or its weights
    alone ``weight_budget``.
    """
    roles = {s.value: s.role for s in traced.sources}

    def size(value: int) -> int:
        return traced.values[value].nbytes

    starts, used, weights, present = [0], 0, 0, set[int]()
    for i, node in enumerate(traced.nodes):
        reads = {v for v in node.refs() if roles.get(v) is Role.WEIGHT}
        fresh = {v for v in node.outputs if v >= 0} | (reads - present)
        cost, weight = sum(map(size, fresh)), sum(map(size, reads - present))
        heavy = weight_budget is not None and weight > 0 and weights + weight > weight_budget
        if (used + cost > budget or heavy) and i > starts[-1]:
            starts.append(i)
            used, weights, present = 0, 0, set()
            cost, weight = cost - weight + sum(map(size, reads)), sum(map(size, reads))
        used += cost
        weights += weight
        present |= reads
    return starts


POLICIES: dict[str, Callable[[Traced, int, int | None], list[int]]] = {
    "o0": cut_o0,
    "o1": cut_o1,
    "o2": cut_o1,
    "o3": cut_o3,
}
"""Section policies by ``optim_level``."""


def cut_sections(
    traced: Traced,
    *,
    level: str,
    mapping: str,
    budget: int = DEFAULT_SECTION_BYTES,
    weight_budget: int | None = None,
) -> list[range]:
    """Cut the nodes of a graph into sections.

    Args:
        traced: The graph.
        level: A key of :data:`POLICIES`.
        mapping: ``"spatial"`` puts everything in one section.
        budget: Bytes that an ``o3`` section may touch.
        weight_budget: Bytes of weights that an ``o3`` section may touch, None for no such limit.

    Returns:
        Node index ranges in order; together they cover every node.

    Raises:
        UnknownOptimLevel: If the level does not exist.
    """
    if level not in POLICIES:
        raise UnknownOptimLevel(found=level)
    count = len(traced.nodes)
    if count == 0:
        return [range(0)]
    starts = [0] if mapping == "spatial" else POLICIES[level](traced, budget, weight_budget)
    return [range(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Settings of a compile.

    Args:
        name: Name of the program.
        inference: Forward only.
        mapping: ``"section"`` or ``"spatial"``.
        optim_level: Section policy, a key of :data:`POLICIES`.
        section_bytes: What an ``o3`` section may touch, in bytes.
        loss_indices: Outputs that are losses; None to find them by shape.
        accumulate: Whether gradients add up until ZEROGRAD runs.
        data_parallel: Whether gradients are reduced between replicas: they lie in buckets then,
            each with a REDUCE section.
        bucket_bytes: What a bucket may hold.
        metadata: Free text stored in the PEF.
    """

    name: str
    inference: bool = False
    mapping: str = "section"
    optim_level: str = "o3"
    section_bytes: int = DEFAULT_SECTION_BYTES
    loss_indices: tuple[int, ...] | None = None
    accumulate: bool = False
    data_parallel: bool = False
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    metadata: tuple[tuple[str, str], ...] = ()


def divide(
    flow: GradientFlow, options: CompileOptions, *, index: int
) -> tuple[SectionedGraph, Boundary]:
    """Divide a graph into sections, and find what passes between them.

    Args:
        flow: The graph.
        options: Settings.
        index: Its number in the program.

    Raises:
        UnknownOptimLevel: If there is no section policy of that name.
    """
    sections = cut_sections(
        flow.traced,
        level=options.optim_level,
        mapping=options.mapping,
        budget=options.section_bytes,
        # Sections no larger than buckets, so that a bucket is full before the last of them.
        weight_budget=options.bucket_bytes if options.data_parallel else None,
    )
    graph = SectionedGraph(
        traced=flow.traced,
        source_of=flow.source_of,
        grads=flow.grads,
        losses=flow.losses,
        state=flow.state,
        overwritten=flow.overwritten,
        index=index,
        sections=tuple(sections),
        section_of={
            v: s
            for s, section in enumerate(sections)
            for i in section
            for v in flow.traced.nodes[i].outputs
        },
    )
    return graph, find_boundary(graph)
