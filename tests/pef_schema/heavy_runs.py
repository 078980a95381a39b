"""Files whose sections, schedules or optimizers share as much as they may."""

from __future__ import annotations

import math

import numpy as np

from tests.pef_schema.heavy_parts import (
    fill,
    graph_of,
    heavy,
    lists,
    named,
    program,
    regions,
    schedule,
    sections,
    singles,
    training,
)
from tests.pef_schema.sheet import Sheet, Tables


@heavy
def _steps_of_a_twin(count: int) -> bytes:
    """A section of many steps, and many sections that name it as their twin."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping sections")
    vector = sheet.children(root, "sections", count)
    rows = sheet.tables("Section", "name steps twin", count)
    sheet.point(vector, rows.at)
    lists = [sheet.references(count), *[sheet.references(1) for _ in range(count - 1)]]
    steps = sheet.tables("Step", "kind", 2 * count - 1)
    sheet.put(steps, "kind", 1)
    sheet.point(lists[0], steps.at[:count])
    for i, one in enumerate(lists[1:]):
        sheet.point(one, steps.at[count + i])
    sheet.link(rows, "steps", [one[0] for one in lists])
    sheet.put(rows, "twin", 0)
    sheet.link(rows, "name", sheet.names("s", count))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _shared_vectors(count: int) -> bytes:
    """Sections, all twins of the first and all called, that zero the same gradients."""
    sheet = Sheet()
    root = training(sheet, "regions graphs sections schedules")
    number = math.isqrt(count)
    schedule(sheet, root, np.arange(number))
    regions(sheet, root, count // number, role=7)
    graph = graph_of(sheet, root, "")
    steps = sections(sheet, root, "reads writes", number, kind=1)
    every = sheet.vector("i", np.arange(count // number))
    sheet.link(steps, "reads", every)
    sheet.link(steps, "writes", every)
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _long_vectors(count: int) -> bytes:
    """Sections that share a vector of zeros, which say nothing good."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping sections")
    steps = sections(sheet, root, "nodes", 200, kind=1)
    sheet.link(steps, "nodes", sheet.vector("i", np.zeros(count)))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _long_shapes(count: int) -> bytes:
    """States of a parameter whose region has a long shape."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions optimizers")
    vector = sheet.children(root, "regions", 2)
    rows = sheet.tables("Region", "name dtype role shape", 2)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "role", [2, 7])
    optimizers = sheet.children(root, "optimizers", 1)
    optimizer = sheet.tables("Optimizer", "name kind params")
    sheet.point(optimizers, optimizer.at)
    sheet.put(optimizer, "kind", 1)
    params = sheet.children(optimizer, "params", 1)
    param = sheet.tables("OptimizerParam", "weight grad states")
    sheet.point(params, param.at)
    sheet.put(param, "weight", 0)
    sheet.put(param, "grad", 1)
    sheet.link(param, "states", sheet.vector("i", np.zeros(count)))
    shape = sheet.vector("q", np.ones(count))
    sheet.link(rows, "shape", shape)
    sheet.link(rows, "name", sheet.names("r", 2))
    sheet.link(optimizer, "name", sheet.string("sgd0"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _sections_alone(count: int) -> bytes:
    """Sections that zero one gradient; all are twins of the first, and called."""
    sheet = Sheet()
    root = training(sheet, "regions graphs sections schedules")
    schedule(sheet, root, np.arange(count))
    regions(sheet, root, 1, role=7)
    graph = graph_of(sheet, root, "")
    steps = sections(sheet, root, "writes", count, kind=1)
    sheet.link(steps, "writes", sheet.vector("i", [0]))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


def _copies(sheet: Sheet, root: Tables, values: int, updated: int) -> None:
    """Lay out a graph of values at region 0, and updates of as many regions with the first."""
    graph = graph_of(sheet, root, "values updates")
    vector = sheet.children(graph, "values", values)
    rows = sheet.tables("Value", "name dtype region", values)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "region", 0)
    vector = sheet.children(graph, "updates", updated)
    updates = sheet.tables("Update", "value region", updated)
    sheet.point(vector, updates.at)
    sheet.put(updates, "value", 0)
    sheet.put(updates, "region", 1 + np.arange(updated))
    sheet.link(rows, "name", sheet.names("v", values))
    sheet.link(graph, "name", sheet.string("g"))


@heavy
def _calls(count: int) -> bytes:
    """One section that is called again and again; it reads and writes many transient regions."""
    sheet = Sheet()
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, np.minimum(np.arange(count), 1))
    updated = min(count, 50_000)
    regions(sheet, root, 1 + updated, role=np.where(np.arange(1 + updated) == 0, 3, 5))
    _copies(sheet, root, 1, updated)
    steps = sections(sheet, root, "reads writes", 2, twin=[0, 1])
    every = sheet.vector("i", np.arange(1 + updated))
    sheet.link(steps, "reads", [sheet.vector("i", [0]), every])
    sheet.link(steps, "writes", sheet.vector("i", 1 + np.arange(updated)))
    named(sheet, root)
    return sheet.pef(root)


def _graphs(count: int, touched: int, role: int) -> bytes:
    """Graphs each of which has a schedule of the same two sections, which write some regions."""
    sheet = Sheet()
    root = training(sheet, "regions graphs sections schedules")
    vector = sheet.children(root, "schedules", count)
    rows = sheet.tables("Schedule", "graph calls", count)
    sheet.point(vector, rows.at)
    sheet.put(rows, "graph", np.arange(count))
    of = lists(sheet, rows, "calls", 2)
    calls = sheet.tables("Call", "call_id section", 2 * count)
    fill(sheet, of, calls)
    sheet.put(calls, "call_id", np.arange(2 * count) % 2)
    sheet.put(calls, "section", np.arange(2 * count) % 2)
    regions(sheet, root, touched, role=role)
    vector = sheet.children(root, "graphs", count)
    graphs = sheet.tables("Graph", "name", count)
    sheet.point(vector, graphs.at)
    steps = sections(sheet, root, "reads writes", 2, kind=1, twin=[0, 1])
    every = sheet.vector("i", np.arange(touched))
    sheet.link(steps, "reads", [sheet.vector("i", []), every])
    sheet.link(steps, "writes", every)
    sheet.link(graphs, "name", sheet.names("g", count))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _schedules(count: int) -> bytes:
    """The sections zero many gradients."""
    return _graphs(count, count, 7)


@heavy
def _order_of_calls(count: int) -> bytes:
    """The sections write transient regions, which other rules forbid them later."""
    return _graphs(count, 100, 5)


def _outputs(count: int, values: int, twin: object) -> bytes:
    """Sections that all write one region, to which as many outputs copy these values."""
    sheet = Sheet()
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 2, role=np.array([3, 6]))
    graph = graph_of(sheet, root, "values outputs")
    vector = sheet.children(graph, "values", values)
    rows = sheet.tables("Value", "name dtype region", values)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "region", 0)
    vector = sheet.children(graph, "outputs", count)
    outputs = sheet.tables("Output", "name value region grad", count)
    sheet.point(vector, outputs.at)
    sheet.put(outputs, "value", np.arange(count) % values)
    sheet.put(outputs, "region", 1)
    sheet.put(outputs, "grad", 3)
    steps = sections(sheet, root, "reads writes", count, twin=twin)
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", sheet.vector("i", [1]))
    sheet.link(rows, "name", sheet.names("v", values))
    sheet.link(outputs, "name", sheet.string("o"))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _twins_share_outputs(count: int) -> bytes:
    """Sections, all twins of the first, and as many outputs of one value."""
    return _outputs(count, 1, 0)


@heavy
def _steps_share_outputs(count: int) -> bytes:
    """Sections, each the first of its kind, and as many outputs of different values."""
    return _outputs(count, count, np.arange(count))


def _arguments(nodes: int, args: int, run: list[int], kinds: list[int]) -> bytes:
    """Sections of one of the nodes each, all of which have the same arguments."""
    sheet = Sheet()
    root = training(sheet, "regions graphs sections schedules")
    number = len(run)
    schedule(sheet, root, np.arange(number))
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", 1)
    value = sheet.tables("Value", "name dtype region")
    sheet.point(vector, value.at)
    sheet.put(value, "dtype", 9)
    sheet.put(value, "region", 0)
    vector = sheet.children(graph, "nodes", nodes)
    rows = sheet.tables("Node", "op arg_tags arg_bits", nodes)
    sheet.point(vector, rows.at)
    kind = np.array(kinds)
    # The first of each kind is the twin of all of them.
    twin = np.where(kind == 3, number - int(np.sum(kind == 3)), 0)
    steps = sections(sheet, root, "nodes recompute reads", number, kind=kind, twin=twin)
    of = singles(sheet, run)
    sheet.link(steps, "nodes", of)
    sheet.link(steps, "recompute", np.where(kind == 3, of, sheet.vector("i", [])))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(value, "name", sheet.string("v"))
    sheet.link(rows, "op", sheet.string("aten.add.Tensor"))
    sheet.link(rows, "arg_tags", sheet.vector("B", np.full(args, 2)))
    sheet.link(rows, "arg_bits", sheet.vector("q", np.zeros(args)))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _twins_share_node(count: int) -> bytes:
    """Sections that all run one node, which one of them may; it has eight times the arguments."""
    return _arguments(1, 8 * count, [0] * count, [2] * count)


@heavy
def _twins_share_arguments(count: int) -> bytes:
    """Nodes of the same arguments, each run, run again and differentiated in its own sections."""
    return _arguments(count, count, 2 * list(range(count)), [2] * count + [3] * count)


@heavy
def _twins_share_params(count: int) -> bytes:
    """Sections, all twins of the first, that scale the gradients of one optimizer."""
    sheet = Sheet()
    root = training(sheet, "regions graphs optimizers sections schedules")
    schedule(sheet, root, np.arange(count))
    regions(sheet, root, 3 * count, role=np.array([2, 7, 10])[np.arange(3 * count) % 3])
    graph = graph_of(sheet, root, "")
    vector = sheet.children(root, "optimizers", 1)
    optimizer = sheet.tables("Optimizer", "name kind params")
    sheet.point(vector, optimizer.at)
    sheet.put(optimizer, "kind", 1)
    vector = sheet.children(optimizer, "params", count)
    params = sheet.tables("OptimizerParam", "weight grad states", count)
    sheet.point(vector, params.at)
    sheet.put(params, "weight", 3 * np.arange(count))
    sheet.put(params, "grad", 3 * np.arange(count) + 1)
    sheet.link(params, "states", singles(sheet, 3 * np.arange(count) + 2))
    steps = sections(sheet, root, "optimizers reads writes", count, kind=5)
    sheet.link(steps, "optimizers", sheet.vector("i", [0]))
    gradients = sheet.vector("i", 3 * np.arange(count) + 1)
    sheet.link(steps, "reads", gradients)
    sheet.link(steps, "writes", gradients)
    sheet.link(optimizer, "name", sheet.string("sgd0"))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _optimizers(count: int) -> bytes:
    """Optimizers of one parameter each with all settings, and steps that name all of them."""
    sheet = Sheet()
    root = training(sheet, "regions graphs optimizers argins sections schedules")
    number = 700_000 // max(count, 20_000)
    schedule(sheet, root, np.arange(number))
    first, every = 4, np.arange(4 + 3 * count)
    role = np.array([2, 7, 10])[(every - first) % 3]
    role[:first] = [10, 11, 11, 11]
    dtype = np.where((every > 0) & (every < first), 10, 9)
    regions(sheet, root, len(every), role=role, dtype=dtype)
    graph = graph_of(sheet, root, "")
    vector = sheet.children(root, "optimizers", count)
    rows = sheet.tables("Optimizer", "name kind params argins options step", count)
    sheet.point(vector, rows.at)
    sheet.put(rows, "kind", 1)
    sheet.put(rows, "step", 0)
    of = [lists(sheet, rows, name, n) for name, n in (("params", 1), ("argins", 3), ("options", 3))]
    params = sheet.tables("OptimizerParam", "weight grad states", count)
    fill(sheet, of[0], params)
    weights = first + 3 * np.arange(count)
    sheet.put(params, "weight", weights)
    sheet.put(params, "grad", weights + 1)
    sheet.link(params, "states", singles(sheet, weights + 2))
    settings = sheet.tables("NamedRegion", "name region", 3 * count)
    fill(sheet, of[1], settings)
    sheet.put(settings, "region", 1 + np.arange(3 * count) % 3)
    options = sheet.tables("Option", "name value", 3 * count)
    fill(sheet, of[2], options)
    sheet.put(options, "value", 0.0)
    vector = sheet.children(root, "argins", 3)
    argins = sheet.tables("Argin", "name region kind", 3)
    sheet.point(vector, argins.at)
    sheet.put(argins, "region", [1, 2, 3])
    sheet.put(argins, "kind", [1, 2, 3])
    # One step updates all weights, one scales all gradients, the others count.
    kinds = np.array([6, 5, *[6] * (number - 2)])
    steps = sections(
        sheet, root, "optimizers reads writes", number, kind=kinds, twin=np.arange(number)
    )
    gradients = sheet.vector("i", weights + 1)
    few = sheet.vector("i", [0, 1, 2, 3])
    written = sheet.vector("i", [0, *np.sort([*weights, *(weights + 2)])])
    sheet.link(steps, "optimizers", sheet.vector("i", np.arange(count)))
    sheet.link(steps, "reads", [sheet.vector("i", every), gradients, *[few] * (number - 2)])
    one = sheet.vector("i", [0])
    sheet.link(steps, "writes", [written, gradients, *[one] * (number - 2)])
    sheet.link(rows, "name", sheet.names("o", count))
    names = np.array([sheet.string(name) for name in ("lr", "momentum", "weight_decay")])
    sheet.link(settings, "name", np.tile(names, count))
    sheet.link(argins, "name", names)
    names = np.array([sheet.string(name) for name in ("dampening", "maximize", "nesterov")])
    sheet.link(options, "name", np.tile(names, count))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)
