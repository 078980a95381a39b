"""Find what passes from one section to a later one, and which section writes each output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import Value
from samba.compiler.sectioned import SectionedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The values that pass from section to section, and the sections that write outputs.

    Args:
        values: Values that a later section takes from an earlier one, ascending.
        stored: Values that are in device memory whatever the backward pass needs.
        output_writers: For each output, the section that writes its region.
    """

    values: tuple[int, ...]
    stored: frozenset[int]
    output_writers: tuple[int, ...]


def find_boundary(graph: SectionedGraph, values: Sequence[Value]) -> Boundary:
    """Find what passes from section to section.

    Args:
        graph: The graph.
        values: Its values; sources have their regions.

    Returns:
        The values that pass, and the sections that write outputs.
    """
    writers = _output_writers(graph)
    takers = [
        *(
            (v, section)
            for section, cut in enumerate(graph.sections)
            for i in cut
            for v in graph.traced.nodes[i].refs()
        ),
        *((o.value, w) for o, w in zip(graph.traced.outputs, writers, strict=True)),
    ]
    crossing = {
        v
        for v, section in takers
        if graph.section_of.get(v, section) != section and values[v].region < 0
    }
    stored = crossing | {v for v, value in enumerate(values) if value.region >= 0}
    return Boundary(
        values=tuple(sorted(crossing)), stored=frozenset(stored), output_writers=writers
    )


def _output_writers(graph: SectionedGraph) -> tuple[int, ...]:
    """The section that writes the region of each output.

    That is the one that makes the output. Where the region is an input's too, a later one that
    is the last to read that input takes its place.
    """
    readers: dict[str, int] = {}
    for section, cut in enumerate(graph.sections):
        for i in cut:
            for v in graph.traced.nodes[i].refs():
                source = graph.source_of.get(v)
                if source is not None and graph.is_state(source):
                    readers[source.region_name] = section
    return tuple(
        max(graph.section_of.get(o.value, 0), readers.get(o.region_name, 0))
        for o in graph.traced.outputs
    )
