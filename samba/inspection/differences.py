"""Where two programs differ, level by level, in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from pef_schema import Argin, Graph, Optimizer, Program, Region, Section, Step, encode
from pef_schema.program_facts import operations_of, operations_text, plain_name, section_types
from samba.inspection.graph_differences import graph_changes, home_changes, line_changes
from samba.inspection.program_pairs import (
    Both,
    Change,
    by_name,
    fields,
    matched,
    order,
    renamed,
    some_names,
)


def differences(a: Program, b: Program) -> dict[str, tuple[Change, ...]]:
    """Compare two programs in everything that a PEF says.

    Args:
        a, b: The programs.

    Returns:
        Differences by level, in the order of :data:`LEVELS`. There is none at all exactly if both
        programs make the same file.
    """
    both = Both(a, b)
    changes = {name: tuple(look(both)) for name, look in _LOOKS.items()}
    if not any(changes.values()) and encode(a) != encode(b):
        what = "the order in which the file lists its parts"
        changes["program"] = (Change(kind="changed", what=what),)
    return changes


def _program(both: Both) -> Iterator[Change]:
    a, b = both.a, both.b
    yield from fields(
        "program",
        ("name", a.name, b.name),
        ("mapping", a.mapping, b.mapping),
        ("inference", str(a.inference), str(b.inference)),
    )
    matches = set(both.pairs.graphs.values())
    ours = [graph for i, graph in enumerate(a.graphs) if i not in both.pairs.graphs]
    theirs = [graph for j, graph in enumerate(b.graphs) if j not in matches]
    yield from by_name("graph ", _sizes(ours), _sizes(theirs))
    yield from order("graphs", [g.name for g in a.graphs], [g.name for g in b.graphs])


def _sizes(graphs: Iterable[Graph]) -> dict[str, str]:
    return {graph.name: f"{len(graph.nodes)} nodes" for graph in graphs}


# -- sections and schedule ---------------------------------------------------


def _sections(both: Both) -> Iterator[Change]:
    a, b, pairs = both.a, both.b, both.pairs.sections
    for i, section in enumerate(a.sections):
        if i not in pairs:
            yield Change(kind="removed", what=f"section {section.name}", a=_section(a, section))
            continue
        other = b.sections[pairs[i]]
        what = f"section {section.name}"
        yield from fields(
            what,
            ("types", section_types(section), section_types(other)),
            ("same as", both.section_a(section.twin), both.section_b(other.twin)),
        )
        for step, there in zip(section.steps, other.steps, strict=False):
            yield from _steps(both, what, step, there)
    for j, section in enumerate(b.sections):
        if both.is_new_section(j):
            yield Change(kind="added", what=f"section {section.name}", b=_section(b, section))
    names = [(a.sections[i].name, b.sections[j].name) for i, j in pairs.items()]
    yield from renamed("sections", [pair for pair in names if pair[0] != pair[1]])


def _section(program: Program, section: Section) -> str:
    operations = operations_text(operations_of(program, section))
    return f"{section_types(section)}: {operations}" if operations else section_types(section)


def _steps(both: Both, what: str, step: Step, other: Step) -> Iterator[Change]:
    a, b = both.a, both.b
    graph_a = a.graphs[step.graph].name if step.graph >= 0 else "none"
    matched_graph = both.pairs.graphs.get(step.graph, -1) == other.graph
    graph_b = b.graphs[other.graph].name if other.graph >= 0 else "none"
    yield from fields(
        what,
        ("graph", graph_a, graph_a if matched_graph else graph_b),
        ("nodes", *_nodes(both, step, other, step.nodes, other.nodes)),
        ("computed again", *_nodes(both, step, other, step.recompute, other.recompute)),
        (
            "optimizers",
            some_names([a.optimizers[i].name for i in step.optimizers]),
            some_names([b.optimizers[i].name for i in other.optimizers]),
        ),
        ("largest norm", repr(step.max_norm), repr(other.max_norm)),
        ("reads", *_regions_of(both, step.reads, other.reads)),
        ("writes", *_regions_of(both, step.writes, other.writes)),
        ("adds to", *_regions_of(both, step.accumulates, other.accumulates)),
    )


def _nodes(
    both: Both, step: Step, other: Step, ours: tuple[int, ...], theirs: tuple[int, ...]
) -> tuple[str, str]:
    """Nodes that only one of two steps has, in words; two equal texts where there are none."""
    same_graph = both.pairs.graphs.get(step.graph, -1) == other.graph
    match = both.nodes[step.graph] if same_graph and step.graph >= 0 else {}
    mine, there = {match.get(i, -1) for i in ours}, set(theirs)
    only_a = [i for i in ours if match.get(i, -1) not in there]
    only_b = [j for j in theirs if j not in mine]
    texts = []
    for program, graph, only in ((both.a, step.graph, only_a), (both.b, other.graph, only_b)):
        texts.append(
            some_names(f"{i} {plain_name(program.graphs[graph].nodes[i].op)}" for i in only)
            or "nothing else"
        )
    return texts[0], texts[1]


def _regions_of(both: Both, ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[str, str]:
    """Regions that only one of two steps has, in words; two equal texts where there are none."""
    names_a = [both.region_a(r) for r in ours]
    names_b = [both.region_b(r) for r in theirs]
    mine, other = set(names_a), set(names_b)
    only_a = some_names(name for name in names_a if name not in other)
    only_b = some_names(name for name in names_b if name not in mine)
    return only_a or "nothing else", only_b or "nothing else"


def _schedules(both: Both) -> Iterator[Change]:
    a, b = both.a, both.b
    matches = {s.graph: s for s in b.schedules}
    back = {there: here for here, there in both.pairs.graphs.items()}
    for schedule in a.schedules:
        other = matches.get(both.pairs.graphs.get(schedule.graph, -1))
        name = a.graphs[schedule.graph].name
        if other is None:
            calls = f"{len(schedule.calls)} calls"
            yield Change(kind="removed", what=f"schedule of graph {name}", a=calls)
            continue
        names_a = [both.section_a(call.section) for call in schedule.calls]
        names_b = [both.section_b(call.section) for call in other.calls]
        pairs = matched([names_a], [names_b])
        ours, theirs = {i for i, _ in pairs}, {j for _, j in pairs}
        for i, call in enumerate(schedule.calls):
            if i not in ours:
                yield Change(kind="removed", what=f"call {call.call_id}", a=names_a[i])
        for j, call in enumerate(other.calls):
            if j not in theirs:
                shown = b.sections[call.section].name
                yield Change(kind="added", what=f"call {call.call_id}", b=shown)
        ids = [(str(schedule.calls[i].call_id), str(other.calls[j].call_id)) for i, j in pairs]
        yield from renamed("ids of calls", [pair for pair in ids if pair[0] != pair[1]])
    for schedule in b.schedules:
        if schedule.graph not in back:
            name, calls = b.graphs[schedule.graph].name, f"{len(schedule.calls)} calls"
            yield Change(kind="added", what=f"schedule of graph {name}", b=calls)


# -- memory ------------------------------------------------------------------


def _regions(both: Both) -> Iterator[Change]:
    a, b, pairs = both.a, both.b, both.pairs.regions
    for i, region in enumerate(a.regions):
        if i not in pairs:
            yield Change(kind="removed", what=f"region {region.name}", a=_region(region))
        else:
            other = b.regions[pairs[i]]
            yield from fields(f"region {region.name}", ("is", _region(region), _region(other)))
    for j, region in enumerate(b.regions):
        if both.is_new_region(j):
            yield Change(kind="added", what=f"region {region.name}", b=_region(region))
    names = [(a.regions[i].name, b.regions[j].name) for i, j in pairs.items()]
    yield from renamed("regions", [pair for pair in names if pair[0] != pair[1]])
    yield from order(
        "regions",
        [both.region_a(i) for i in range(len(a.regions))],
        [both.region_b(j) for j in range(len(b.regions))],
    )
    yield from home_changes(both)
    yield from by_name(
        "tensor name ",
        {
            s.name: f"{both.region_a(s.region)}, gradient {both.region_a(s.grad_region)}"
            for s in a.symbols
        },
        {
            s.name: f"{both.region_b(s.region)}, gradient {both.region_b(s.grad_region)}"
            for s in b.symbols
        },
    )


def _region(region: Region) -> str:
    shape = ",".join(map(str, region.shape))
    return f"{region.role.name.lower()} {region.dtype.name.lower()}[{shape}]"


def _constants(both: Both) -> Iterator[Change]:
    a, b = both.a, both.b
    for i, j in both.pairs.regions.items():
        ours, theirs = a.regions[i], b.regions[j]
        data_a = a.segments[ours.segment] if ours.segment >= 0 else None
        data_b = b.segments[theirs.segment] if theirs.segment >= 0 else None
        yield from fields(f"constant {ours.name}", ("data", _data(data_a), _data(data_b)))


def _data(data: bytes | None) -> str:
    if data is None:
        return "none"
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"


# -- optimizers and hyperparameters ------------------------------------------


def _optimizers(both: Both) -> Iterator[Change]:
    a, b = both.a, both.b
    ours, theirs = {o.name: o for o in a.optimizers}, {o.name: o for o in b.optimizers}
    yield from by_name(
        "optimizer ",
        {name: _rule(o) for name, o in ours.items()},
        {name: _rule(o) for name, o in theirs.items()},
    )
    yield from order("optimizers", list(ours), list(theirs))
    for name in [name for name in ours if name in theirs]:
        one, other = ours[name], theirs[name]
        yield from by_name(
            f"optimizer {name}: ",
            {key: repr(value) for key, value in one.options},
            {key: repr(value) for key, value in other.options},
        )
        yield from by_name(
            f"optimizer {name}: hyperparameter ",
            {key: both.region_a(region) for key, region in one.argins},
            {key: both.region_b(region) for key, region in other.argins},
        )
        yield from fields(
            f"optimizer {name}", ("step count", both.region_a(one.step), both.region_b(other.step))
        )
        weights_a = {
            both.region_a(p.weight): some_names(map(both.region_a, (p.grad, *p.states)))
            for p in one.params
        }
        weights_b = {
            both.region_b(p.weight): some_names(map(both.region_b, (p.grad, *p.states)))
            for p in other.params
        }
        yield from by_name(f"optimizer {name}: weight ", weights_a, weights_b)
        yield from order(f"weights of optimizer {name}", list(weights_a), list(weights_b))


def _rule(optimizer: Optimizer) -> str:
    return optimizer.kind.name.lower()


def _argins(both: Both) -> Iterator[Change]:
    a, b = both.a, both.b
    yield from by_name(
        "",
        {x.name: _argin(x, both.region_a(x.region)) for x in a.argins},
        {x.name: _argin(x, both.region_b(x.region)) for x in b.argins},
    )
    yield from order("hyperparameters", [x.name for x in a.argins], [x.name for x in b.argins])


def _argin(argin: Argin, region: str) -> str:
    where = "" if region == argin.name else f", in {region}"
    return f"{argin.kind.name.lower()}, default {argin.default!r}{where}"


def _metadata(both: Both) -> Iterator[Change]:
    yield from by_name("", dict(both.a.metadata), dict(both.b.metadata))


_LOOKS = {
    "program": _program,
    "graph": graph_changes,
    "lines": line_changes,
    "constants": _constants,
    "sections": _sections,
    "schedule": _schedules,
    "regions": _regions,
    "optimizers": _optimizers,
    "hyperparameters": _argins,
    "metadata": _metadata,
}

LEVELS = tuple(_LOOKS)
"""The levels, in the order in which they are told."""
