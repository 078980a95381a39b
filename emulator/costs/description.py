"""What a PEF holds, as plain data.

``inspect --json`` prints it. The listing, the ``.pef.log`` and the report are views of it.
docs/program.md describes every key. A key keeps its name and its meaning while ``version`` stays
the same; new keys may come at any time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from emulator.costs.schedule_memory import Places, graph_as_dict, schedule_memory
from emulator.costs.steps import Costs, node_cost
from emulator.op_facts.precision import ARITHMETIC, AS_WRITTEN, precisions
from emulator.op_facts.table import facts_of
from pef_schema import Graph, Optimizer, OutputGrad, PefInfo, Program, Section, Step, Value
from pef_schema.program_facts import (
    lives,
    modules_of,
    operations_of,
    owners,
    plain_name,
    section_bytes,
    section_lines,
    section_ops,
    weight_lines,
)

FORMAT, VERSION = "samba.inspect", 2


def describe(
    program: Program, info: PefInfo | None = None, *, graph: int | None = None
) -> dict[str, Any]:
    """Describe a program.

    Args:
        program: The program.
        info: What the head of its file says; None for a program in memory.
        graph: Leave out all other graphs, the sections that only they call, and the regions that
            only these touch; None for everything.

    Returns:
        JSON as Python has it, without NaN and infinities.
    """
    chosen = range(len(program.graphs)) if graph is None else (graph,)
    schedules = [i for i, s in enumerate(program.schedules) if s.graph in chosen]
    called = {call.section for i in schedules for call in program.schedules[i].calls}
    sections = range(len(program.sections)) if graph is None else sorted(called)
    regions: Collection[int] = range(len(program.regions))
    by_graph = {program.schedules[i].graph: (i,) for i in schedules}
    running, places, costs = _running(program), Places(program), Costs(program)
    if graph is not None:
        regions = sorted(_regions_in_use(program, sections, program.graphs[graph]))
    return {
        "format": FORMAT,
        "version": VERSION,
        "file": None if info is None else _file(info),
        "name": program.name,
        "mapping": program.mapping,
        "inference": program.inference,
        "arithmetic": dict(program.metadata).get(ARITHMETIC, AS_WRITTEN),
        "counts": {
            "graphs": len(chosen),
            "nodes": sum(len(program.graphs[i].nodes) for i in chosen),
            "sections": len(sections),
            "structures": len({program.sections[i].twin for i in sections}),
            "regions": len(regions),
            "bytes": sum(program.regions[i].nbytes for i in regions),
        },
        "sections": _sections(program, sections, schedules, costs),
        "graphs": [_graph(program, i, by_graph.get(i, ()), running, places, costs) for i in chosen],
        "regions": _regions(program, regions, schedules),
        "optimizers": [_optimizer(program, optimizer) for optimizer in program.optimizers],
        "hyperparameters": [
            {
                "name": argin.name,
                "kind": argin.kind.name.lower(),
                "default": _number(argin.default),
                "region": program.regions[argin.region].name,
            }
            for argin in program.argins
        ],
        "metadata": dict(program.metadata),
    }


def _file(info: PefInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "bytes": info.size,
        "metadata_bytes": info.metadata_length,
        "constant_bytes": info.data_length,
        "format": info.writer,
        "least_reader": info.min_reader,
        "digest": info.digest,
    }


def _regions_in_use(program: Program, sections: Collection[int], graph: Graph) -> set[int]:
    """Regions that sections read or write, and those of what a graph takes and gives."""
    regions = {
        region
        for i in sections
        for step in program.sections[i].steps
        for region in (*step.reads, *step.writes)
    }
    regions |= {graph.values[v].region for v in graph.inputs}
    for output in graph.outputs:
        regions |= {output.region, output.grad_region}
    return {region for region in regions if region >= 0}


def _sections(
    program: Program, sections: Iterable[int], schedules: Iterable[int], costs: Costs
) -> list[dict[str, Any]]:
    owned, lines = owners(program), weight_lines(program)
    calls: dict[int, list[dict[str, Any]]] = {}
    for i in schedules:
        schedule = program.schedules[i]
        name = program.graphs[schedule.graph].name
        for call in schedule.calls:
            calls.setdefault(call.section, []).append({"graph": name, "call_id": call.call_id})
    return [_section(program, i, calls.get(i, []), owned, lines, costs) for i in sections]


def _section(
    program: Program,
    index: int,
    calls: list[dict[str, Any]],
    owned: Mapping[int, tuple[str, ...]],
    lines: Mapping[int, tuple[str, ...]],
    costs: Costs,
) -> dict[str, Any]:
    section: Section = program.sections[index]
    return {
        "id": index,
        "name": section.name,
        "types": [kind.name for kind in section.kinds],
        "modules": list(modules_of(program, section, owned)),
        "operations": dict(operations_of(program, section)),
        "lines": list(section_lines(program, section, lines)),
        "ops": section_ops(program, section),
        "bytes": section_bytes(program, section),
        "cost": costs.of_section(index).as_dict(),
        "same_as": None if section.twin == index else section.twin,
        "calls": calls,
        "steps": [_step(program, step) for step in section.steps],
    }


def _step(program: Program, step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.name,
        "graph": program.graphs[step.graph].name if step.graph >= 0 else None,
        "nodes": list(step.nodes),
        "recompute": list(step.recompute),
        "optimizers": [program.optimizers[i].name for i in step.optimizers],
        "max_norm": _number(step.max_norm) if step.max_norm else None,
        "reads": list(step.reads),
        "writes": list(step.writes),
        "accumulates": list(step.accumulates),
    }


def _graph(
    program: Program,
    index: int,
    schedules: Iterable[int],
    running: Mapping[tuple[int, int], list[int]],
    places: Places,
    costs: Costs,
) -> dict[str, Any]:
    graph = program.graphs[index]
    facts: dict[str, Any] = {
        "name": graph.name,
        "inputs": [_tensor(program, graph.values[v]) for v in graph.inputs],
        "outputs": [
            {
                **_tensor(program, graph.values[output.value]),
                "name": output.name,
                "region": program.regions[output.region].name,
                "gradient": output.grad.name.lower(),
                "loss": output.grad is OutputGrad.ONES,
                "made_by": _maker(graph, output.value),
            }
            for output in graph.outputs
        ],
        "losses": [o.name for o in graph.outputs if o.grad is OutputGrad.ONES],
        "updates": [
            {"value": graph.values[u.value].name, "region": program.regions[u.region].name}
            for u in graph.updates
        ],
        "gradients": [
            {"name": g.name, "line": g.source, "nodes": len(g.nodes)} for g in graph.gradients
        ],
        "cost": None,
        "precision": {},
        "schedule": [],
        "memory": None,
        "nodes": [],
    }
    precision = dict(precisions(graph.nodes, graph.values))
    for text in precision.values():
        facts["precision"][text] = facts["precision"].get(text, 0) + 1
    facts["nodes"] = _nodes(program, index, precision, running)
    for i in schedules:
        facts["schedule"] = [
            {"call_id": call.call_id, "section": call.section}
            for call in program.schedules[i].calls
        ]
        facts["memory"] = graph_as_dict(program, schedule_memory(program, i), places)
        facts["cost"] = costs.of_schedule(i).as_dict()
    return facts


def _maker(graph: Graph, value: int) -> dict[str, Any] | None:
    """What computed a value, behind operations that only show it under another shape."""
    makers = {v: node for node in graph.nodes for v in node.outputs if v >= 0}
    node = makers.get(value)
    while node is not None and facts_of(node.op).view:
        refs = tuple(node.refs())
        at = node.outputs.index(value)
        # Of several at once each result shows the argument in its place.
        value = refs[at if len(refs) == len(node.outputs) else 0] if refs else -1
        before = makers.get(value)
        if before is None:
            break
        node = before
    if node is None:
        return None
    return {"operation": plain_name(node.op), "module": node.module, "line": node.source}


def _running(program: Program) -> dict[tuple[int, int], list[int]]:
    """Sections that run or differentiate each node, by graph and node."""
    by_node: dict[tuple[int, int], list[int]] = {}
    for i, section in enumerate(program.sections):
        for step in section.steps:
            for node in step.nodes:
                by_node.setdefault((step.graph, node), []).append(i)
    return by_node


def _nodes(
    program: Program,
    index: int,
    precision: Mapping[int, str],
    running: Mapping[tuple[int, int], list[int]],
) -> list[dict[str, Any]]:
    graph = program.graphs[index]
    return [
        {
            "id": i,
            "op": node.op,
            "operation": plain_name(node.op),
            "module": node.module,
            "line": node.source,
            "precision": precision.get(i, ""),
            "flops": node_cost(graph, node).flops,
            "sections": list(dict.fromkeys(running.get((index, i), ()))),
            "inputs": list(dict.fromkeys(graph.values[v].name for v in node.refs())),
            "outputs": [
                _tensor(program, graph.values[v]) if v >= 0 else None for v in node.outputs
            ],
        }
        for i, node in enumerate(graph.nodes)
    ]


def _tensor(program: Program, value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype.name.lower(),
        "region": program.regions[value.region].name if value.region >= 0 else None,
    }


def _regions(
    program: Program, regions: Iterable[int], schedules: Iterable[int]
) -> list[dict[str, Any]]:
    tensors: dict[int, list[str]] = {}
    for symbol in program.symbols:
        tensors.setdefault(symbol.region, []).append(symbol.name)
    life: dict[int, list[dict[str, Any]]] = {}
    for i in schedules:
        schedule = program.schedules[i]
        for one in lives(program, i):
            if not program.regions[one.region].role.is_transient:
                continue  # it keeps what it holds from run to run, whatever is called
            life.setdefault(one.region, []).append(
                {
                    "graph": program.graphs[schedule.graph].name,
                    "first_call": schedule.calls[one.first].call_id,
                    "last_call": schedule.calls[one.last].call_id,
                }
            )
    return [
        {
            "id": i,
            "name": program.regions[i].name,
            "role": program.regions[i].role.name.lower(),
            "shape": list(program.regions[i].shape),
            "dtype": program.regions[i].dtype.name.lower(),
            "bytes": program.regions[i].nbytes,
            "kept": not program.regions[i].role.is_transient,
            "life": life.get(i, []),
            "tensors": tensors.get(i, []),
        }
        for i in regions
    ]


def _optimizer(program: Program, optimizer: Optimizer) -> dict[str, Any]:
    regions = program.regions
    return {
        "name": optimizer.name,
        "kind": optimizer.kind.name.lower(),
        "options": {name: _number(value) for name, value in optimizer.options},
        "hyperparameters": {name: regions[region].name for name, region in optimizer.argins},
        "step": regions[optimizer.step].name if optimizer.step >= 0 else None,
        "parameters": [
            {
                "weight": regions[p.weight].name,
                "gradient": regions[p.grad].name,
                "states": [regions[state].name for state in p.states],
            }
            for p in optimizer.params
        ],
    }


def _number(value: float) -> float | str:
    """A number as JSON has it: infinities and NaN are texts."""
    return value if math.isfinite(value) else str(value)


STATS_FORMAT, STATS_VERSION = "samba.compiled_stats", 1
_OF_SECTIONS = ("id", "name", "types", "modules", "operations", "ops", "bytes", "cost")


def compiled_stats(described: Mapping[str, Any], *, pef: str = "") -> dict[str, Any]:
    """What was compiled, in short: sections with their costs, and memory along the schedules.

    Args:
        described: What :func:`describe` returned.
        pef: The file.

    Returns:
        JSON as Python has it; docs/run.md describes the keys.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> compiled_stats(describe(nothing))["sections"]
        []
    """
    return {
        "format": STATS_FORMAT,
        "version": STATS_VERSION,
        "pef": pef,
        "program": described["name"],
        "mapping": described["mapping"],
        "inference": described["inference"],
        "sections": [{key: s[key] for key in _OF_SECTIONS} for s in described["sections"]],
        "graphs": [g["memory"] for g in described["graphs"] if g["memory"] is not None],
    }
