"""A traced graph that is divided into sections, which is what all later stages start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.op_facts.table import op_facts
from pef_schema.program import Role
from samba.compiler.gradient_flow import gradient_values
from samba.compiler.kept_state import overwritten_sources
from samba.compiler.options import CompileOptions
from samba.compiler.sections import cut_sections
from samba.tracer.traced import Source, Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionedGraph:
    """A traced graph, divided into sections.

    Args:
        traced: The graph.
        index: Its number in the program.
        sections: Positions of its nodes, section by section.
        grads: For each value, whether a gradient flows through it.
        state: Names of the regions that are an output of some graph of the program and an input
            of some graph: what one run writes there, the next one reads.
        source_of: The sources, by value.
        section_of: For each value that a node makes, the section of that node.
        overwritten: Sources whose region holds something else after the forward pass.
    """

    traced: Traced
    index: int
    sections: tuple[range, ...]
    grads: tuple[bool, ...]
    state: frozenset[str]
    source_of: Mapping[int, Source]
    section_of: Mapping[int, int]
    overwritten: frozenset[int]

    def is_state(self, source: Source) -> bool:
        """Whether a source is an input that some graph of the program writes."""
        return source.role is Role.INPUT and source.region_name in self.state

    def starts_backward(self, value: int) -> bool:
        """Whether a gradient can start from a result: it is computed, and depends on a weight."""
        return self.grads[value] and value not in self.source_of


def divide(
    traced: Traced, options: CompileOptions, *, index: int, state: frozenset[str]
) -> SectionedGraph:
    """Divide a graph into sections and find the values that gradients flow through.

    Args:
        traced: The graph.
        options: Settings.
        index: Its number in the program.
        state: Names of the regions that are an output and an input of the program's graphs.

    Raises:
        UnknownOptimLevel: If there is no section policy of that name.
    """
    source_of = {s.value: s for s in traced.sources}
    starts = [o.value for o in traced.outputs if o.value not in source_of]
    if options.inference:
        grads = [False] * len(traced.values)
    else:
        grads = gradient_values(traced, op_facts(), starts)
    sections = cut_sections(
        traced,
        level=options.optim_level,
        mapping=options.mapping,
        budget=options.section_bytes,
        # Sections no larger than buckets, so that a bucket is full before the last of them.
        weight_budget=options.bucket_bytes if options.data_parallel else None,
    )
    return SectionedGraph(
        traced=traced,
        index=index,
        sections=tuple(sections),
        grads=tuple(grads),
        state=state,
        source_of=source_of,
        section_of={
            v: s
            for s, section in enumerate(sections)
            for i in section
            for v in traced.nodes[i].outputs
        },
        overwritten=overwritten_sources(
            traced, state & {output.region_name for output in traced.outputs}
        ),
    )
