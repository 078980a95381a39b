"""What of two programs stands for the same: graphs, nodes, values, regions, sections; and changes.

Numbers shift when something is inserted, and names with numbers in them do too. So values are
matched by the nodes that make them, regions by the values that they hold, and sections by the nodes
that they run; names come next.

Matching takes a time that grows with the length of the lists alone: items are matched by what
identifies them first, and between those that are by what is less and less sure. ``difflib`` may
take a time that grows with the square of the length, which is minutes for graphs of 100,000 nodes.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pef_schema import Graph, Program, Step
from pef_schema.printable import some_of

_LISTED = 6
"""Names that one line tells."""
_LONGEST = 160
"""Characters of a text of the file that one line tells."""
_BOTH = 500
"""Characters of what each side has where it differs; lists of names are cut by their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Args:
        kind: ``added`` (only the second program has it), ``removed`` (only the first has it),
            ``changed``, or ``renamed`` (the same under another name, number or line).
        what: What differs.
        a: What the first program has there; empty where that is nothing.
        b: What the second program has there.
        count: How many differences of this kind it stands for.
    """

    kind: str
    what: str
    a: str = ""
    b: str = ""
    count: int = 1


def fields(where: str, *found: tuple[str, str, str]) -> Iterator[Change]:
    """Compare things that both programs have.

    Args:
        where: Whose they are.
        found: Name, and what each program has.

    Example:
        >>> [change.what for change in fields("lr", ("kind", "a", "a"), ("default", "1", "2"))]
        ['lr: default']
    """
    for name, a, b in found:
        if a != b:
            shown_a, shown_b = _apart(a, b, _BOTH)
            yield Change(kind="changed", what=f"{where}: {name}", a=shown_a, b=shown_b)


def by_name(what: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    """Compare texts by name: what only one side has, and what differs.

    Args:
        what: What they are; comes before the name.
        a, b: What each program has.
    """
    for name, text in a.items():
        if name not in b:
            yield Change(kind="removed", what=f"{what}{name}", a=_cut(text))
        elif text != b[name]:
            shown_a, shown_b = _apart(text, b[name], _LONGEST)
            yield Change(kind="changed", what=f"{what}{name}", a=shown_a, b=shown_b)
    for name, text in b.items():
        if name not in a:
            yield Change(kind="added", what=f"{what}{name}", b=_cut(text))


def renamed(what: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Change]:
    """One change for all that are the same except for their names, which follow from each other.

    Args:
        what: What they are, in the plural.
        pairs: Both names of each.
    """
    if pairs:
        a, b = (some_names([pair[side] for pair in pairs]) for side in (0, 1))
        yield Change(kind="renamed", what=what, a=a, b=b, count=len(pairs))


def order(what: str, a: Sequence[str], b: Sequence[str]) -> Iterator[Change]:
    """Compare the order of what both have.

    Args:
        what: What they are, in the plural.
        a, b: Their names.
    """
    mine, other = set(a), set(b)
    ours, theirs = [n for n in a if n in other], [n for n in b if n in mine]
    if ours != theirs:
        first = next(i for i, name in enumerate(ours) if [name] != theirs[i : i + 1])
        yield Change(
            kind="changed",
            what=f"order of {what}",
            a=some_names(ours[first:]),
            b=some_names(theirs[first:]),
        )


def some_names(names: Iterable[str], most: int = _LISTED) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> some_names("abcdefgh")
        'a, b, c, d, e, f and 2 more'
    """
    return some_of(list(names), most, _cut)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _apart(a: str, b: str, most: int) -> tuple[str, str]:
    """Two texts that differ, each cut so that the first difference stays in it."""
    if max(len(a), len(b)) <= most:
        return a, b
    shortest = min(len(a), len(b))
    at = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    start = max(0, at - _LONGEST // 4)
    before = "..." if start else ""
    return before + _cut(a[start:]), before + _cut(b[start:])


_CELLS = 10_000
"""Pairs of items between two matches of which the best choice is looked for."""

Keys = Sequence[Hashable]


def matched(ours: Sequence[Keys], theirs: Sequence[Keys]) -> list[tuple[int, int]]:
    """Match the items of two lists without crossing.

    Args:
        ours: For each way of telling items apart, the surest first, the keys of all items.
        theirs: The same of the other list.

    Returns:
        Pairs of positions, ascending in both lists.

    Example:
        >>> matched(["abcd"], ["axcd"])
        [(0, 0), (2, 2), (3, 3)]
        >>> matched(["abcd", "...."], ["axcd", "...."])
        [(0, 0), (1, 1), (2, 2), (3, 3)]
    """
    pairs: list[tuple[int, int]] = []
    for mine, other in zip(ours, theirs, strict=True):
        matches: list[tuple[int, int]] = []
        for low, high in _gaps(pairs, len(mine), len(other)):
            matches += _match(mine, other, low, high)
        pairs = sorted([*pairs, *matches])
    return pairs


def _gaps(
    pairs: Sequence[tuple[int, int]], ours: int, theirs: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Stretches between matches that both lists have items in, as first and behind the last."""
    low = (0, 0)
    for pair in (*pairs, (ours, theirs)):
        if pair[0] > low[0] and pair[1] > low[1]:
            yield low, pair
        low = (pair[0] + 1, pair[1] + 1)


def _match(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """Match one stretch: equal ends, then keys that occur once, then what is between these."""
    (a, b), (c, d) = low, high
    pairs: list[tuple[int, int]] = []
    while a < c and b < d and ours[a] == theirs[b]:
        pairs.append((a, b))
        a, b = a + 1, b + 1
    while a < c and b < d and ours[c - 1] == theirs[d - 1]:
        c, d = c - 1, d - 1
        pairs.append((c, d))
    anchors = _once_in_both(ours, theirs, (a, b), (c, d))
    shifted = [(i - a, j - b) for i, j in anchors]
    for (e, f), (g, h) in _gaps(shifted, c - a, d - b):
        choose = _longest if (g - e) * (h - f) <= _CELLS else _next
        pairs += choose(ours, theirs, (a + e, b + f), (a + g, b + h))
    return [*pairs, *anchors]


def _once_in_both(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """The longest ascending choice among items whose key occurs once in each stretch."""
    mine = _places(ours, low[0], high[0])
    other = _places(theirs, low[1], high[1])
    candidates = [(i, other[key]) for key, i in mine.items() if i >= 0 and other.get(key, -1) >= 0]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(candidates):
        at = bisect.bisect_left(tails, j)
        before.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(j)
            ends.append(n)
        else:
            tails[at], ends[at] = j, n
    chosen: list[tuple[int, int]] = []
    n = ends[-1] if ends else -1
    while n >= 0:
        chosen.append(candidates[n])
        n = before[n]
    return chosen[::-1]


def _places(keys: Keys, start: int, end: int) -> dict[Hashable, int]:
    """Position of each key, in order; -1 for one that occurs several times."""
    places: dict[Hashable, int] = {}
    for i in range(start, end):
        places[keys[i]] = -1 if keys[i] in places else i
    return places


def _longest(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """The longest choice of equal items, by the table of all pairs."""
    mine, other = ours[low[0] : high[0]], theirs[low[1] : high[1]]
    lengths = [[0] * (len(other) + 1)]
    for key in mine:
        above, row = lengths[-1], [0]
        for j, same in enumerate(other):
            row.append(above[j] + 1 if key == same else max(above[j + 1], row[j]))
        lengths.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = len(mine), len(other)
    while i and j:
        if mine[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((low[0] + i, low[1] + j))
        elif lengths[i - 1][j] >= lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs


def _next(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """For each item the next equal one behind the last match: quick, where a table is too large."""
    places: dict[Hashable, list[int]] = {}
    for j in range(low[1], high[1]):
        places.setdefault(theirs[j], []).append(j)
    pairs: list[tuple[int, int]] = []
    last = low[1] - 1
    for i in range(low[0], high[0]):
        candidates = places.get(ours[i], ())
        at = bisect.bisect_right(candidates, last)
        if at < len(candidates):
            last = candidates[at]
            pairs.append((i, last))
    return pairs


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
    pairs = Pairs()
    pairs.graphs.update(_graphs(a, b))
    for i, j in pairs.graphs.items():
        ours, theirs = a.graphs[i], b.graphs[j]
        pairs.nodes[i] = _nodes(ours, theirs)
        pairs.values[i] = _values(ours, theirs, pairs.nodes[i])
    _regions(a, b, pairs)
    nodes_b = {
        (j, there): (i, here) for i, j in pairs.graphs.items() for here, there in pairs.nodes[i]
    }
    known = {place: place for place in nodes_b.values()}
    regions_b = {there: here for here, there in pairs.regions.items()}
    pairs.sections.update(
        matched(
            _section_keys(a, known, {r: r for r in pairs.regions}),
            _section_keys(b, nodes_b, regions_b),
        )
    )
    return pairs


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
    pairs: dict[int, int] = {}
    for i, j in nodes:
        for here, there in zip(ours.nodes[i].outputs, theirs.nodes[j].outputs, strict=False):
            if here >= 0 and there >= 0:
                pairs[here] = there
    made_here = {v for node in ours.nodes for v in node.outputs}
    made_there = {v for node in theirs.nodes for v in node.outputs}
    by_name = {v.name: j for j, v in enumerate(theirs.values) if j not in made_there}
    for i, value in enumerate(ours.values):
        if i not in made_here and value.name in by_name:
            pairs[i] = by_name[value.name]
    return pairs


def _regions(a: Program, b: Program, pairs: Pairs) -> None:
    """Homes of matched values and of their gradients, as far as roles agree; then equal names."""
    partners: set[int] = set()

    def add(here: int, there: int) -> None:
        fits = here >= 0 and there >= 0 and here not in pairs.regions and there not in partners
        if fits and a.regions[here].role is b.regions[there].role:
            pairs.regions[here] = there
            partners.add(there)

    names = {region.name: j for j, region in enumerate(b.regions)}
    for i, region in enumerate(a.regions):
        if not region.role.is_transient:
            add(i, names.get(region.name, -1))
    for i, j in pairs.graphs.items():
        ours, theirs = a.graphs[i].values, b.graphs[j].values
        for here, there in pairs.values[i].items():
            add(ours[here].region, theirs[there].region)
            add(ours[here].grad_region, theirs[there].grad_region)
    for i, region in enumerate(a.regions):
        there = names.get(region.name, -1)
        if i not in pairs.regions and there >= 0 and there not in partners:
            pairs.regions[i] = there
            partners.add(there)


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
