"""Cut the forward graph into sections: the one place to add a section policy.

A policy is a function from a traced graph to the node index at which each
section starts. Sections are runs of consecutive nodes, so a cut never makes a
cycle between sections. All later stages start from the graph that is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emulator.op_facts.names import CAST_INPUT, CAST_RESULT, NEXT_SEED
from pef_schema.errors import SambaError
from pef_schema.program import Role
from samba.compiler.boundary import Boundary, SectionedGraph, find_boundary
from samba.compiler.gradient_flow import GradientFlow
from samba.distributed.settings import DEFAULT_BUCKET_BYTES
from samba.tracer.traced import Traced

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
        level: ``"o0"``, ``"o1"`` or ``"o3"``.
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
        optim_level: Section policy, ``"o0"``, ``"o1"`` or ``"o3"``.
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
