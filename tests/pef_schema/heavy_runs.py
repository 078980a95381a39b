"""Files whose sections, schedules or optimizers share as much as they may."""

from __future__ import annotations

import math

import numpy as np

from tests.pef_schema.heavy_parts import (
    fill,
    graph_of,
    heavy,
    lists,
    program,
    regions,
    schedule,
    sections,
    singles,
    training,
    values_of,
)
from tests.pef_schema.sheet import Sheet, Tables


@heavy
def _steps_of_a_twin(sheet: Sheet, count: int) -> Tables:
    """A section of many steps, and many sections that name it as their twin."""
    root = training(sheet, "sections")
    rows = sheet.rows(root, "sections", "Section", "steps", count, stem="s", twin=0)
    lists = [sheet.references(count), *[sheet.references(1) for _ in range(count - 1)]]
    steps = sheet.tables("Step", "kind", 2 * count - 1)
    sheet.put(steps, "kind", 1)
    sheet.point(lists[0], steps.at[:count])
    for i, one in enumerate(lists[1:]):
        sheet.point(one, steps.at[count + i])
    sheet.link(rows, "steps", [one[0] for one in lists])
    return root


@heavy
def _shared_vectors(sheet: Sheet, count: int) -> Tables:
    """Sections, all twins of the first and all called, that zero the same gradients."""
    root = training(sheet, "regions graphs sections schedules")
    number = math.isqrt(count)
    schedule(sheet, root, np.arange(number))
    regions(sheet, root, count // number, role=7)
    graph_of(sheet, root)
    steps = sections(sheet, root, "reads writes", number, kind=1)
    every = sheet.vector("i", np.arange(count // number))
    sheet.link(steps, "reads", every)
    sheet.link(steps, "writes", every)
    return root


@heavy
def _long_vectors(sheet: Sheet, count: int) -> Tables:
    """Sections that share a vector of zeros, which say nothing good."""
    root = training(sheet, "sections")
    steps = sections(sheet, root, "nodes", 200, kind=1)
    sheet.link(steps, "nodes", sheet.vector("i", np.zeros(count)))
    return root


@heavy
def _long_shapes(sheet: Sheet, count: int) -> Tables:
    """States of a parameter whose region has a long shape."""
    root = training(sheet, "regions optimizers")
    rows = sheet.rows(root, "regions", "Region", "shape", 2, stem="r", dtype=9, role=[2, 7])
    optimizer = sheet.rows(root, "optimizers", "Optimizer", "params", stem="sgd", kind=1)
    param = sheet.rows(optimizer, "params", "OptimizerParam", "states", weight=0, grad=1)
    sheet.link(param, "states", sheet.vector("i", np.zeros(count)))
    shape = sheet.vector("q", np.ones(count))
    sheet.link(rows, "shape", shape)
    return root


@heavy
def _sections_alone(sheet: Sheet, count: int) -> Tables:
    """Sections that zero one gradient; all are twins of the first, and called."""
    root = training(sheet, "regions graphs sections schedules")
    schedule(sheet, root, np.arange(count))
    regions(sheet, root, 1, role=7)
    graph_of(sheet, root)
    steps = sections(sheet, root, "writes", count, kind=1)
    sheet.link(steps, "writes", sheet.vector("i", [0]))
    return root


def _copies(sheet: Sheet, root: Tables, values: int, updated: int) -> None:
    """Lay out a graph of values at region 0, and updates of as many regions with the first."""
    graph = graph_of(sheet, root, "values updates")
    values_of(sheet, graph, values)
    targets = 1 + np.arange(updated)
    sheet.rows(graph, "updates", "Update", count=updated, value=0, region=targets)


@heavy
def _steps_share_updates(sheet: Sheet, count: int) -> Tables:
    """Sections that all write the last weights of many that a graph updates; the first one all."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 1 + count, role=np.where(np.arange(1 + count) == 0, 3, 2))
    _copies(sheet, root, 1, count)
    number = count // 2
    steps = sections(sheet, root, "reads writes", number, twin=np.arange(number))
    every, last = 1 + np.arange(count), 1 + np.arange(max(count - 100, 0), count)
    shared = sheet.vector("i", last)
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", [sheet.vector("i", every), *[shared] * (number - 1)])
    return root


@heavy
def _calls(sheet: Sheet, count: int) -> Tables:
    """One section that is called again and again; it reads and writes many transient regions."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, np.minimum(np.arange(count), 1))
    updated = min(count, 50_000)
    regions(sheet, root, 1 + updated, role=np.where(np.arange(1 + updated) == 0, 3, 5))
    _copies(sheet, root, 1, updated)
    steps = sections(sheet, root, "reads writes", 2, twin=[0, 1])
    every = sheet.vector("i", np.arange(1 + updated))
    sheet.link(steps, "reads", [sheet.vector("i", [0]), every])
    sheet.link(steps, "writes", sheet.vector("i", 1 + np.arange(updated)))
    return root


def _graphs(sheet: Sheet, count: int, touched: int, role: int) -> Tables:
    """Graphs each of which has a schedule of the same two sections, which write some regions."""
    root = training(sheet, "regions graphs sections schedules")
    rows = sheet.rows(root, "schedules", "Schedule", "calls", count, graph=np.arange(count))
    of = lists(sheet, rows, "calls", 2)
    calls = sheet.tables("Call", "call_id section", 2 * count)
    fill(sheet, of, calls)
    sheet.put(calls, "call_id", np.arange(2 * count) % 2)
    sheet.put(calls, "section", np.arange(2 * count) % 2)
    regions(sheet, root, touched, role=role)
    sheet.rows(root, "graphs", "Graph", count=count, stem="g")
    steps = sections(sheet, root, "reads writes", 2, kind=1, twin=[0, 1])
    every = sheet.vector("i", np.arange(touched))
    sheet.link(steps, "reads", [sheet.vector("i", []), every])
    sheet.link(steps, "writes", every)
    return root


@heavy
def _schedules(sheet: Sheet, count: int) -> Tables:
    """The sections zero many gradients."""
    return _graphs(sheet, count, count, 7)


@heavy
def _order_of_calls(sheet: Sheet, count: int) -> Tables:
    """The sections write transient regions, which other rules forbid them later."""
    return _graphs(sheet, count, 100, 5)


def _outputs(sheet: Sheet, count: int, values: int, twin: object) -> Tables:
    """Sections that all write one region, to which as many outputs copy these values."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 2, role=np.array([3, 6]))
    graph = graph_of(sheet, root, "values outputs")
    values_of(sheet, graph, values)
    columns = {"value": np.arange(count) % values, "region": 1, "grad": 3}
    outputs = sheet.rows(graph, "outputs", "Output", "name", count, **columns)
    steps = sections(sheet, root, "reads writes", count, twin=twin)
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", sheet.vector("i", [1]))
    sheet.link(outputs, "name", sheet.string("o"))
    return root


@heavy
def _twins_share_outputs(sheet: Sheet, count: int) -> Tables:
    """Sections, all twins of the first, and as many outputs of one value."""
    return _outputs(sheet, count, 1, 0)


@heavy
def _steps_share_outputs(sheet: Sheet, count: int) -> Tables:
    """Sections, each the first of its kind, and as many outputs of different values."""
    return _outputs(sheet, count, count, np.arange(count))


def _arguments(sheet: Sheet, nodes: int, args: int, run: list[int], kinds: list[int]) -> Tables:
    """Sections of one of the nodes each, all of which have the same arguments."""
    root = training(sheet, "regions graphs sections schedules")
    number = len(run)
    schedule(sheet, root, np.arange(number))
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes")
    values_of(sheet, graph)
    rows = sheet.rows(graph, "nodes", "Node", "op arg_tags arg_bits", nodes)
    kind = np.array(kinds)
    # The first of each kind is the twin of all of them.
    twin = np.where(kind == 3, number - int(np.sum(kind == 3)), 0)
    steps = sections(sheet, root, "nodes recompute reads", number, kind=kind, twin=twin)
    of = singles(sheet, run)
    sheet.link(steps, "nodes", of)
    sheet.link(steps, "recompute", np.where(kind == 3, of, sheet.vector("i", [])))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(rows, "op", sheet.string("aten.add.Tensor"))
    sheet.link(rows, "arg_tags", sheet.vector("B", np.full(args, 2)))
    sheet.link(rows, "arg_bits", sheet.vector("q", np.zeros(args)))
    return root


@heavy
def _twins_share_node(sheet: Sheet, count: int) -> Tables:
    """Sections that all run one node, which one of them may; it has eight times the arguments."""
    return _arguments(sheet, 1, 8 * count, [0] * count, [2] * count)


@heavy
def _twins_share_arguments(sheet: Sheet, count: int) -> Tables:
    """Nodes of the same arguments, each run, run again and differentiated in its own sections."""
    return _arguments(sheet, count, count, 2 * list(range(count)), [2] * count + [3] * count)


@heavy
def _twins_share_params(sheet: Sheet, count: int) -> Tables:
    """Sections, all twins of the first, that scale the gradients of one optimizer."""
    root = training(sheet, "regions graphs optimizers sections schedules")
    schedule(sheet, root, np.arange(count))
    regions(sheet, root, 3 * count, role=np.array([2, 7, 10])[np.arange(3 * count) % 3])
    graph_of(sheet, root)
    optimizer = sheet.rows(root, "optimizers", "Optimizer", "params", stem="sgd", kind=1)
    columns = {"weight": 3 * np.arange(count), "grad": 3 * np.arange(count) + 1}
    params = sheet.rows(optimizer, "params", "OptimizerParam", "states", count, **columns)
    sheet.link(params, "states", singles(sheet, 3 * np.arange(count) + 2))
    steps = sections(sheet, root, "optimizers reads writes", count, kind=5)
    sheet.link(steps, "optimizers", sheet.vector("i", [0]))
    gradients = sheet.vector("i", 3 * np.arange(count) + 1)
    sheet.link(steps, "reads", gradients)
    sheet.link(steps, "writes", gradients)
    return root


@heavy
def _optimizers(sheet: Sheet, count: int) -> Tables:
    """Optimizers of one parameter each with all settings, and steps that name all of them."""
    root = training(sheet, "regions graphs optimizers argins sections schedules")
    number = 700_000 // max(count, 20_000)
    schedule(sheet, root, np.arange(number))
    first, every = 4, np.arange(4 + 3 * count)
    role = np.array([2, 7, 10])[(every - first) % 3]
    role[:first] = [10, 11, 11, 11]
    dtype = np.where((every > 0) & (every < first), 10, 9)
    regions(sheet, root, len(every), role=role, dtype=dtype)
    graph_of(sheet, root)
    fields = "params argins options"
    rows = sheet.rows(root, "optimizers", "Optimizer", fields, count, stem="o", kind=1, step=0)
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
    argins = sheet.rows(root, "argins", "Argin", "name", 3, region=[1, 2, 3], kind=[1, 2, 3])
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
    names = np.array([sheet.string(name) for name in ("lr", "momentum", "weight_decay")])
    sheet.link(settings, "name", np.tile(names, count))
    sheet.link(argins, "name", names)
    names = np.array([sheet.string(name) for name in ("dampening", "maximize", "nesterov")])
    sheet.link(options, "name", np.tile(names, count))
    return root
