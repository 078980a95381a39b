"""Find what passes from one section to a later one, and which section writes outputs and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import Role, Value
from samba.compiler.sectioned import SectionedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The values that pass from section to section, and the sections that write outputs.

    Args:
        values: Values that a later section takes from an earlier one, ascending.
        stored: Values that are in device memory whatever the backward pass needs.
        output_writers: For each output, the section that writes its region.
        update_writers: For each update of state, the section that writes its region.
    """

    values: tuple[int, ...]
    stored: frozenset[int]
    output_writers: tuple[int, ...]
    update_writers: tuple[int, ...]


def find_boundary(graph: SectionedGraph, values: Sequence[Value]) -> Boundary:
    """Find what passes from section to section.

    Args:
        graph: The graph.
        values: Its values; sources have their regions.

    Returns:
        The values that pass, and the sections that write outputs.
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
    crossing = {
        v
        for v, section in takers
        if graph.section_of.get(v, section) != section and values[v].region < 0
    }
    stored = crossing | {v for v, value in enumerate(values) if value.region >= 0}
    outputs = len(graph.traced.outputs)
    return Boundary(
        values=tuple(sorted(crossing)),
        stored=frozenset(stored),
        output_writers=writers[:outputs],
        update_writers=writers[outputs:],
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
