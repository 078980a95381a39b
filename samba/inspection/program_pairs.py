"""What of two programs stands for the same: graphs, nodes, values, regions, sections.

Numbers shift when something is inserted, and names with numbers in them do too. So values are
matched by the nodes that make them, regions by the values that they hold, and sections by the nodes
that they run; names come next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from pef_schema import Graph, Program, Step
from samba.inspection.matching import matched

__all__ = ["Both", "Pairs", "pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What of one program stands for what of another, by index; what has no other side is absent.

    Args:
        graphs: Graphs.
        nodes: Nodes of these, by the index of the first program's graph, ascending.
        values: Values of these, by the same.
        regions: Regions.
        sections: Sections.
    """

    graphs: dict[int, int] = field(default_factory=dict[int, int])
    nodes: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int]]]
    )
    values: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    regions: dict[int, int] = field(default_factory=dict[int, int])
    sections: dict[int, int] = field(default_factory=dict[int, int])


def pair(a: Program, b: Program) -> Pairs:
    """Match two programs.

    Args:
        a, b: The programs.

    Returns:
        What stands for what; nothing stands for two.
    """
    found = Pairs()
    found.graphs.update(_graphs(a, b))
    for i, j in found.graphs.items():
        ours, theirs = a.graphs[i], b.graphs[j]
        found.nodes[i] = _nodes(ours, theirs)
        found.values[i] = _values(ours, theirs, found.nodes[i])
    _regions(a, b, found)
    nodes_b = {
        (j, there): (i, here) for i, j in found.graphs.items() for here, there in found.nodes[i]
    }
    known = {place: place for place in nodes_b.values()}
    regions_b = {there: here for here, there in found.regions.items()}
    found.sections.update(
        matched(
            _section_keys(a, known, {r: r for r in found.regions}),
            _section_keys(b, nodes_b, regions_b),
        )
    )
    return found


def _graphs(a: Program, b: Program) -> dict[int, int]:
    """Graphs of equal names; where each program has but one, these."""
    if len(a.graphs) == len(b.graphs) == 1:
        return {0: 0}
    by_name = {graph.name: j for j, graph in enumerate(b.graphs)}
    return {i: by_name[g.name] for i, g in enumerate(a.graphs) if g.name in by_name}


def _nodes(ours: Graph, theirs: Graph) -> list[tuple[int, int]]:
    """Match nodes: by names of results; op, module and results; op and module; op alone.

    A name says nothing where one graph has more nodes of an op in a module than the other: from the
    inserted one on, the numbers in their names are others.
    """
    counts = [Counter((node.op, node.module) for node in g.nodes) for g in (ours, theirs)]
    keys: list[list[list[Hashable]]] = []
    for side, graph in enumerate((ours, theirs)):
        names: list[Hashable] = []
        forms: list[Hashable] = []
        for i, node in enumerate(graph.nodes):
            kind = (node.op, node.module)
            results = [graph.values[v] for v in node.outputs if v >= 0]
            sure = counts[0][kind] == counts[1][kind]
            names.append((node.op, *[v.name for v in results]) if sure else (side, i))
            forms.append((*kind, *[(v.shape, v.dtype) for v in results]))
        keys.append(
            [names, forms, [(n.op, n.module) for n in graph.nodes], [n.op for n in graph.nodes]]
        )
    return matched(keys[0], keys[1])


def _values(ours: Graph, theirs: Graph, nodes: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Results of matched nodes; of all other values those of equal names."""
    found: dict[int, int] = {}
    for i, j in nodes:
        for here, there in zip(ours.nodes[i].outputs, theirs.nodes[j].outputs, strict=False):
            if here >= 0 and there >= 0:
                found[here] = there
    made_here = {v for node in ours.nodes for v in node.outputs}
    made_there = {v for node in theirs.nodes for v in node.outputs}
    by_name = {v.name: j for j, v in enumerate(theirs.values) if j not in made_there}
    for i, value in enumerate(ours.values):
        if i not in made_here and value.name in by_name:
            found[i] = by_name[value.name]
    return found


def _regions(a: Program, b: Program, found: Pairs) -> None:
    """Homes of matched values and of their gradients, as far as roles agree; then equal names."""
    taken: set[int] = set()

    def add(here: int, there: int) -> None:
        fits = here >= 0 and there >= 0 and here not in found.regions and there not in taken
        if fits and a.regions[here].role is b.regions[there].role:
            found.regions[here] = there
            taken.add(there)

    names = {region.name: j for j, region in enumerate(b.regions)}
    for i, region in enumerate(a.regions):
        if not region.role.is_transient:
            add(i, names.get(region.name, -1))
    for i, j in found.graphs.items():
        ours, theirs = a.graphs[i].values, b.graphs[j].values
        for here, there in found.values[i].items():
            add(ours[here].region, theirs[there].region)
            add(ours[here].grad_region, theirs[there].grad_region)
    for i, region in enumerate(a.regions):
        there = names.get(region.name, -1)
        if i not in found.regions and there >= 0 and there not in taken:
            found.regions[i] = there
            taken.add(there)


def _section_keys(
    program: Program, nodes: dict[tuple[int, int], tuple[int, int]], regions: dict[int, int]
) -> list[list[Hashable]]:
    """What tells sections apart: what they run, in the first program's numbers; kinds and name.

    What the other program does not have keeps a number that no other has.
    """

    def node(step: Step, i: int) -> Hashable:
        return nodes.get((step.graph, i), (id(program), step.graph, i))

    def content(step: Step) -> Hashable:
        if step.nodes:
            return (step.kind, *[node(step, i) for i in step.nodes])
        touched = step.writes if not step.optimizers else (*step.writes, *step.reads)
        return (step.kind, *[regions.get(r, (id(program), r)) for r in touched])

    return [
        [tuple([content(step) for step in section.steps]) for section in program.sections],
        [(section.kinds, section.name) for section in program.sections],
    ]


class Both:
    """Two programs that are compared: what the second has goes by the names that the first uses.

    What stands for nothing in the first has a plus behind its name.

    Args:
        a, b: The programs.
    """

    def __init__(self, a: Program, b: Program) -> None:
        self.a, self.b, self.pairs = a, b, pair(a, b)
        self.nodes = {i: dict(pairs) for i, pairs in self.pairs.nodes.items()}
        self._regions = {there: here for here, there in self.pairs.regions.items()}
        self._sections = {there: here for here, there in self.pairs.sections.items()}

    def region_a(self, index: int) -> str:
        """Name of a region of the first program; ``none`` for -1."""
        return self.a.regions[index].name if index >= 0 else "none"

    def region_b(self, index: int) -> str:
        """Name of a region of the second program."""
        if index in self._regions:
            return self.region_a(self._regions[index])
        return f"{self.b.regions[index].name}+" if index >= 0 else "none"

    def is_new_region(self, index: int) -> bool:
        """Whether a region of the second program stands for none of the first."""
        return index not in self._regions

    def section_a(self, index: int) -> str:
        """Name of a section of the first program."""
        return self.a.sections[index].name

    def section_b(self, index: int) -> str:
        """Name of a section of the second program."""
        if index in self._sections:
            return self.section_a(self._sections[index])
        return f"{self.b.sections[index].name}+"

    def is_new_section(self, index: int) -> bool:
        """Whether a section of the second program stands for none of the first."""
        return index not in self._sections
