"""Files made to cost their reader much: each by one part of a program, as large as it may be."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tests.pef_schema.sheet import Sheet, Tables

HEAVY: dict[str, Callable[[int], bytes]] = {}
"""Makers of files by name; their argument says how large the part is."""


def _heavy(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    HEAVY[make.__name__.lstrip("_")] = make
    return make


def _program(sheet: Sheet, fields: str) -> Tables:
    """Lay out the root of an inference program with some of its vectors."""
    root = sheet.tables("Program", f"name mapping inference {fields}")
    sheet.put(root, "inference", 1)
    return root


def _named(sheet: Sheet, root: Tables) -> None:
    """Lay out the root's own strings, which come last."""
    sheet.link(root, "name", sheet.string("net"))
    sheet.link(root, "mapping", sheet.string("section"))


def _regions(sheet: Sheet, root: Tables, count: int, role: int = 3) -> None:
    """Lay out regions of no dimension."""
    vector = sheet.children(root, "regions", count)
    rows = sheet.tables("Region", "name dtype role", count)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "role", role)
    sheet.link(rows, "name", sheet.names("r", count))


def _graph(sheet: Sheet, root: Tables, fields: str) -> Tables:
    vector = sheet.children(root, "graphs", 1)
    graph = sheet.tables("Graph", f"name {fields}")
    sheet.point(vector, graph.at)
    return graph


def _sections(
    sheet: Sheet, root: Tables, fields: str, count: int, kind: int = 2, twin: object = 0
) -> Tables:
    """Lay out sections of one step each, and return the steps."""
    vector = sheet.children(root, "sections", count)
    rows = sheet.tables("Section", "name steps twin", count)
    sheet.point(vector, rows.at)
    lists = sheet.take(8 * count) + 8 * np.arange(count, dtype=np.int64)
    steps = sheet.tables("Step", f"kind graph {fields}", count)
    sheet.columns.append((lists, "I", 1))
    sheet.columns.append((lists + 4, "I", steps.at - lists - 4))
    sheet.link(rows, "steps", lists)
    sheet.put(rows, "twin", twin)
    sheet.put(steps, "kind", kind)
    sheet.put(steps, "graph", 0 if kind in (2, 3) else -1)
    sheet.link(rows, "name", sheet.names("s", count))
    return steps


@_heavy
def _regions_alone(count: int) -> bytes:
    sheet = Sheet()
    root = _program(sheet, "regions")
    _regions(sheet, root, count)
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _values(count: int) -> bytes:
    sheet = Sheet()
    root = _program(sheet, "graphs")
    graph = _graph(sheet, root, "values")
    vector = sheet.children(graph, "values", count)
    rows = sheet.tables("Value", "name dtype shape", count)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.link(rows, "name", sheet.names("v", count))
    shapes = sheet.take(24 * count, 8, after=4) + 24 * np.arange(count, dtype=np.int64)
    sheet.columns += [(shapes, "I", 2), (shapes + 4, "q", 1000), (shapes + 12, "q", 2000)]
    sheet.link(rows, "shape", shapes)
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


def _nodes(count: int, tags: bytes, bits: list[int], values: int = 1) -> bytes:
    """A graph of values without a producer, and nodes that all say the same."""
    sheet = Sheet()
    root = _program(sheet, "regions graphs sections")
    _regions(sheet, root, 1)
    graph = _graph(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", values)
    rows = sheet.tables("Value", "name dtype region", values)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "region", 0)
    vector = sheet.children(graph, "nodes", count)
    nodes = sheet.tables("Node", "op arg_tags arg_bits outputs module source", count)
    sheet.point(vector, nodes.at)
    steps = _sections(sheet, root, "nodes reads", 1)
    sheet.link(steps, "nodes", sheet.vector("i", np.arange(count)))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(rows, "name", sheet.names("v", values))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", list(tags)))
    sheet.link(nodes, "arg_bits", sheet.vector("q", bits))
    sheet.link(nodes, "outputs", sheet.vector("i", [-1]))
    sheet.link(nodes, "module", sheet.string("net__layer"))
    sheet.link(nodes, "source", sheet.string("net.py:7"))
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _nodes_alone(count: int) -> bytes:
    return _nodes(count, b"\2\2\5", [0, 0, 1])


@_heavy
def _tokens(count: int) -> bytes:
    """One node with as many arguments."""
    return _nodes(1, b"\2" * count, [i % 1000 for i in range(count)], values=1000)


@_heavy
def _floats(count: int) -> bytes:
    return _nodes(1, b"\6" * count, list(range(count)))


@_heavy
def _texts(count: int) -> bytes:
    """One node with as many different strings."""
    sheet = Sheet()
    root = _program(sheet, "graphs")
    graph = _graph(sheet, root, "nodes")
    vector = sheet.children(graph, "nodes", 1)
    nodes = sheet.tables("Node", "op texts")
    sheet.point(vector, nodes.at)
    texts = sheet.children(nodes, "texts", count)
    sheet.point(texts, sheet.names("", count))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _keywords(count: int) -> bytes:
    """One node with as many keyword arguments."""
    sheet = Sheet()
    root = _program(sheet, "graphs")
    graph = _graph(sheet, root, "nodes")
    vector = sheet.children(graph, "nodes", 1)
    nodes = sheet.tables("Node", "op kwarg_names arg_tags arg_bits")
    sheet.point(vector, nodes.at)
    names = sheet.children(nodes, "kwarg_names", count)
    sheet.point(names, sheet.names("k", count))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", np.ones(count)))
    sheet.link(nodes, "arg_bits", sheet.vector("q", np.zeros(count)))
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _sections_alone(count: int) -> bytes:
    """Sections that zero one gradient; all are twins of the first."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions sections")
    _regions(sheet, root, 1, role=7)
    steps = _sections(sheet, root, "writes", count, kind=1)
    sheet.link(steps, "writes", sheet.vector("i", [0]))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _calls(count: int) -> bytes:
    """One section that is called again and again; it reads and writes many transient regions."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions graphs sections schedules")
    regions = min(count, 100_000)
    _regions(sheet, root, regions, role=5)
    graph = _graph(sheet, root, "")
    schedules = sheet.children(root, "schedules", 1)
    schedule = sheet.tables("Schedule", "graph calls")
    sheet.point(schedules, schedule.at)
    sheet.put(schedule, "graph", 0)
    calls = sheet.children(schedule, "calls", count)
    rows = sheet.tables("Call", "call_id section", count)
    sheet.point(calls, rows.at)
    sheet.put(rows, "call_id", np.arange(count))
    sheet.put(rows, "section", np.minimum(np.arange(count), 1))
    steps = _sections(sheet, root, "reads writes", 2, kind=1, twin=[0, 1])
    every = sheet.vector("i", np.arange(regions))
    nothing = sheet.vector("i", [])
    sheet.link(steps, "reads", [nothing, every])
    sheet.link(steps, "writes", every)
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


def _twins(count: int, args: int, part: str) -> bytes:
    """Sections, all twins of the first, that share one thing which is large."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions graphs optimizers sections")
    gradnorm = part == "params"
    regions = 1 + 2 * args if gradnorm else 1
    vector = sheet.children(root, "regions", regions)
    rows = sheet.tables("Region", "name dtype role", regions)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "role", np.where(np.arange(regions) % 2, 2, 7))
    graph = _graph(sheet, root, "values nodes outputs")
    values = sheet.children(graph, "values", 1)
    value = sheet.tables("Value", "name dtype region")
    sheet.point(values, value.at)
    sheet.put(value, "dtype", 9)
    sheet.put(value, "region", 0)
    nodes = sheet.children(graph, "nodes", 1)
    node = sheet.tables("Node", "op arg_tags arg_bits")
    sheet.point(nodes, node.at)
    ends = args if part == "outputs" else 1
    outputs = sheet.children(graph, "outputs", ends)
    output = sheet.tables("Output", "name value region grad", ends)
    sheet.point(outputs, output.at)
    sheet.put(output, "value", 0)
    sheet.put(output, "region", 0)
    sheet.put(output, "grad", 3)
    optimizers = sheet.children(root, "optimizers", 1)
    optimizer = sheet.tables("Optimizer", "name kind params")
    sheet.point(optimizers, optimizer.at)
    sheet.put(optimizer, "kind", 1)
    params = sheet.children(optimizer, "params", args if gradnorm else 0)
    if gradnorm:
        param = sheet.tables("OptimizerParam", "weight grad", args)
        sheet.point(params, param.at)
        sheet.put(param, "weight", 1 + 2 * np.arange(args))
        sheet.put(param, "grad", 2 + 2 * np.arange(args))
    steps = _sections(sheet, root, "nodes optimizers reads", count, kind=5 if gradnorm else 2)
    sheet.link(steps, "nodes", sheet.vector("i", [] if gradnorm else [0]))
    sheet.link(steps, "optimizers", sheet.vector("i", [0] if gradnorm else []))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(rows, "name", sheet.names("r", regions))
    sheet.link(output, "name", sheet.string("o"))
    few = args if part == "arguments" else 1
    sheet.link(value, "name", sheet.string("v"))
    sheet.link(node, "op", sheet.string("aten.add.Tensor"))
    sheet.link(node, "arg_tags", sheet.vector("B", np.full(few, 2)))
    sheet.link(node, "arg_bits", sheet.vector("q", np.zeros(few)))
    sheet.link(optimizer, "name", sheet.string("sgd0"))
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _twins_share_arguments(count: int) -> bytes:
    return _twins(count, 8 * count, "arguments")


@_heavy
def _twins_share_outputs(count: int) -> bytes:
    return _twins(count, count, "outputs")


@_heavy
def _twins_share_params(count: int) -> bytes:
    return _twins(count, count, "params")


@_heavy
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
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _shared_vectors(count: int) -> bytes:
    """Sections that all read the same regions."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions sections")
    sections = 60
    _regions(sheet, root, count // sections, role=7)
    steps = _sections(sheet, root, "reads writes accumulates", sections, kind=1)
    every = sheet.vector("i", np.arange(count // sections))
    for name in ("reads", "writes", "accumulates"):
        sheet.link(steps, name, every)
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _long_vectors(count: int) -> bytes:
    """Sections that share a vector of zeros, which say nothing good."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping sections")
    steps = _sections(sheet, root, "nodes", 200, kind=1)
    sheet.link(steps, "nodes", sheet.vector("i", np.zeros(count)))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
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
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _overlapping_vectors(count: int) -> bytes:
    """Inputs of graphs that lie over one another, so that each number is part of many."""
    sheet = Sheet()
    root = _program(sheet, "graphs")
    graphs = 1000
    vector = sheet.children(root, "graphs", graphs)
    rows = sheet.tables("Graph", "name inputs", graphs)
    sheet.point(vector, rows.at)
    names = sheet.names("g", graphs)
    sheet.link(rows, "name", names)
    length = count - graphs
    pile = sheet.raw(struct.pack("<I", length) * count)
    sheet.link(rows, "inputs", pile + 4 * np.arange(graphs))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _overlapping_strings(count: int) -> bytes:
    """Values of metadata that lie over one another, each with a character of four bytes."""
    sheet = Sheet()
    root = _program(sheet, "metadata")
    entries = 1000
    vector = sheet.children(root, "metadata", entries)
    rows = sheet.tables("Entry", "key value", entries)
    sheet.point(vector, rows.at)
    sheet.link(rows, "key", sheet.names("k", entries))
    # All strings end together: the lengths of the later ones are text of the earlier ones.
    heads: list[bytes] = []
    starts: list[int] = []
    while len(starts) < entries:
        length = struct.pack("<I", count - 8 * len(heads) - 4)
        if length.isascii():
            starts.append(8 * len(heads))
        heads.append((length if length.isascii() else b"aaaa") + b"aaaa")
    end = "\U0001f600".encode()
    text = b"b" * (count - 8 * len(heads) - len(end))
    pile = sheet.raw(b"".join(heads) + text + end + b"\0")
    sheet.link(rows, "value", pile + np.array(starts))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _text_of_four_bytes(count: int) -> bytes:
    """Values of metadata of a megabyte each, one character of which makes them four times that."""
    sheet = Sheet()
    root = _program(sheet, "metadata")
    entries = max(count // 2**20, 1)
    vector = sheet.children(root, "metadata", entries)
    rows = sheet.tables("Entry", "key value", entries)
    sheet.point(vector, rows.at)
    sheet.link(rows, "key", sheet.names("k", entries))
    text = b"a" * (min(count, 2**20) - 64) + "\U0001f600".encode()
    sheet.link(rows, "value", [sheet.string(text) for _ in range(entries)])
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _plain_text(count: int) -> bytes:
    """Metadata that a writer might write: text."""
    sheet = Sheet()
    root = _program(sheet, "metadata")
    entries = max(count // 2**20, 1)
    vector = sheet.children(root, "metadata", entries)
    rows = sheet.tables("Entry", "key value", entries)
    sheet.point(vector, rows.at)
    sheet.link(rows, "key", sheet.names("k", entries))
    text = b"a" * (min(count, 2**20) - 64)
    sheet.link(rows, "value", [sheet.string(text) for _ in range(entries)])
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _long_names(count: int) -> bytes:
    """Regions that share one name, far too long, with characters that must be looked at."""
    sheet = Sheet()
    root = _program(sheet, "regions")
    vector = sheet.children(root, "regions", 250)
    rows = sheet.tables("Region", "name dtype role", 250)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "role", 3)
    sheet.link(rows, "name", sheet.string("\u00e9" * (count // 2)))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _vtables(count: int) -> bytes:
    """Regions each of which has a vtable of its own."""
    sheet = Sheet()
    root = _program(sheet, "regions")
    vector = sheet.children(root, "regions", count)
    head = struct.pack("<HHHHHH", 12, 12, 4, 0, 8, 9)
    vtables = sheet.raw(head * count) + 12 * np.arange(count, dtype=np.int64)
    at = sheet.take(12 * count) + 12 * np.arange(count, dtype=np.int64)
    sheet.point(vector, at)
    names = sheet.names("r", count)
    sheet.columns += [(at, "i", at - vtables), (at + 4, "I", names - at - 4)]
    sheet.columns += [(at + 8, "B", 9), (at + 9, "B", 3)]
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _segments(count: int) -> bytes:
    """Constants of no bytes."""
    sheet = Sheet()
    root = _program(sheet, "segments regions")
    vector = sheet.children(root, "segments", count)
    rows = sheet.tables("Segment", "sha256", count)
    sheet.point(vector, rows.at)
    vector = sheet.children(root, "regions", count)
    regions = sheet.tables("Region", "name dtype role segment shape", count)
    sheet.point(vector, regions.at)
    sheet.put(regions, "dtype", 9)
    sheet.put(regions, "role", 4)
    sheet.put(regions, "segment", np.arange(count))
    sheet.link(regions, "name", sheet.names("r", count))
    sheet.link(regions, "shape", sheet.vector("q", [0]))
    empty = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    sheet.link(rows, "sha256", sheet.vector("B", list(empty)))
    _named(sheet, root)
    return sheet.pef(root)


@_heavy
def _everything(count: int) -> bytes:
    """A valid program of so many tables, all different, that spends all other budgets too."""
    sheet = Sheet()
    root = _program(sheet, "regions graphs sections")
    third = count // 3
    vector = sheet.children(root, "regions", third)
    regions = sheet.tables("Region", "name dtype role shape", third)
    sheet.point(vector, regions.at)
    sheet.put(regions, "dtype", 9)
    sheet.put(regions, "role", 3)
    graph = _graph(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", third)
    values = sheet.tables("Value", "name dtype shape region", third)
    sheet.point(vector, values.at)
    sheet.put(values, "dtype", 9)
    sheet.put(values, "region", np.where(np.arange(third) < 100, np.arange(third), -1))
    vector = sheet.children(graph, "nodes", third - 200)
    nodes = sheet.tables("Node", "op arg_tags arg_bits outputs module source", third - 200)
    sheet.point(vector, nodes.at)
    steps = _sections(sheet, root, "nodes reads", 20, twin=0)
    names = sheet.names("n", third)
    sheet.link(regions, "name", names)
    sheet.link(values, "name", names)
    sheet.link(regions, "shape", sheet.vector("q", [2, 3]))
    sheet.link(values, "shape", sheet.vector("q", [2, 3]))
    few = max(min(third - 200, (1_000_000 - third * 10) // 40), 1)
    sheet.link(steps, "nodes", sheet.vector("i", np.arange(few // 4)))
    sheet.link(steps, "reads", sheet.vector("i", np.arange(few)))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", list(b"\2\2\5")))
    sheet.link(nodes, "arg_bits", sheet.vector("q", [0, 1, 1]))
    outs = sheet.take(8 * (third - 200)) + 8 * np.arange(third - 200, dtype=np.int64)
    sheet.columns += [(outs, "I", 1), (outs + 4, "i", 100 + np.arange(third - 200))]
    sheet.link(nodes, "outputs", outs)
    sheet.link(nodes, "module", sheet.string("net__layer"))
    sheet.link(nodes, "source", sheet.string("net.py:7"))
    sheet.link(graph, "name", sheet.string("g"))
    _named(sheet, root)
    return sheet.pef(root)
