"""Files with as much data of one kind as they may have: tables, arguments, text, vectors."""

from __future__ import annotations

import struct

import numpy as np

from tests.pef_schema.heavy_parts import (
    graph_of,
    heavy,
    long_singles,
    named,
    program,
    regions,
    schedule,
    sections,
    singles,
)
from tests.pef_schema.sheet import Sheet


@heavy
def _regions_alone(count: int) -> bytes:
    sheet = Sheet()
    root = program(sheet, "regions")
    regions(sheet, root, count)
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _values(count: int) -> bytes:
    sheet = Sheet()
    root = program(sheet, "graphs schedules")
    schedule(sheet, root)
    graph = graph_of(sheet, root, "values")
    vector = sheet.children(graph, "values", count)
    rows = sheet.tables("Value", "name dtype shape", count)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.link(rows, "name", sheet.names("v", count))
    shapes = sheet.take(24 * count, 8, after=4) + 24 * np.arange(count, dtype=np.int64)
    sheet.columns += [(shapes, "I", 2), (shapes + 4, "q", 1000), (shapes + 12, "q", 2000)]
    sheet.link(rows, "shape", shapes)
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


def _nodes(
    count: int, tags: bytes, bits: list[int], values: int = 1, op: str = "aten.add.Tensor"
) -> bytes:
    """A graph of values without a producer, and nodes that all say the same."""
    sheet = Sheet()
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", values)
    rows = sheet.tables("Value", "name dtype region", values)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "region", 0)
    vector = sheet.children(graph, "nodes", count)
    nodes = sheet.tables("Node", "op arg_tags arg_bits outputs module source", count)
    sheet.point(vector, nodes.at)
    steps = sections(sheet, root, "nodes reads", 1)
    sheet.link(steps, "nodes", sheet.vector("i", np.arange(count)))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(rows, "name", sheet.names("v", values))
    sheet.link(nodes, "op", sheet.string(op))
    sheet.link(nodes, "arg_tags", sheet.vector("B", list(tags)))
    sheet.link(nodes, "arg_bits", sheet.vector("q", bits))
    sheet.link(nodes, "outputs", sheet.vector("i", [-1]))
    sheet.link(nodes, "module", sheet.string("net__layer"))
    sheet.link(nodes, "source", sheet.string("net.py:7"))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _nodes_alone(count: int) -> bytes:
    return _nodes(count, b"\2\2\5", [0, 0, 1])


@heavy
def _tokens(count: int) -> bytes:
    """One node with as many arguments."""
    return _nodes(1, b"\2" * count, [i % 1000 for i in range(count)], values=1000)


@heavy
def _floats(count: int) -> bytes:
    return _nodes(1, b"\6" * count, list(range(count)))


@heavy
def _sizes(count: int) -> bytes:
    """One node that pads by as many numbers, each of which is a size."""
    bits = [0, count, *range(count)]
    return _nodes(1, b"\2\x08" + b"\5" * count, bits, op="aten.constant_pad_nd.default")


@heavy
def _sized_nodes(count: int) -> bytes:
    """Nodes each of which makes something of a size that it is told."""
    return _nodes(count, b"\x08\5\5\5", [2, 1, 1, 0], op="aten.full.default")


@heavy
def _texts(count: int) -> bytes:
    """One node with as many different strings."""
    sheet = Sheet()
    root = program(sheet, "graphs schedules")
    schedule(sheet, root)
    graph = graph_of(sheet, root, "nodes")
    vector = sheet.children(graph, "nodes", 1)
    nodes = sheet.tables("Node", "op texts")
    sheet.point(vector, nodes.at)
    texts = sheet.children(nodes, "texts", count)
    sheet.point(texts, sheet.names("", count))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _keywords(count: int) -> bytes:
    """One node with as many keyword arguments."""
    sheet = Sheet()
    root = program(sheet, "graphs schedules")
    schedule(sheet, root)
    graph = graph_of(sheet, root, "nodes")
    vector = sheet.children(graph, "nodes", 1)
    nodes = sheet.tables("Node", "op kwarg_names arg_tags arg_bits")
    sheet.point(vector, nodes.at)
    names = sheet.children(nodes, "kwarg_names", count)
    sheet.point(names, sheet.names("k", count))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", np.ones(count)))
    sheet.link(nodes, "arg_bits", sheet.vector("q", np.zeros(count)))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _overlapping_vectors(count: int) -> bytes:
    """Inputs of graphs that lie over one another, so that each number is part of many."""
    sheet = Sheet()
    root = program(sheet, "graphs")
    graphs = 1000
    vector = sheet.children(root, "graphs", graphs)
    rows = sheet.tables("Graph", "name inputs", graphs)
    sheet.point(vector, rows.at)
    names = sheet.names("g", graphs)
    sheet.link(rows, "name", names)
    length = count - graphs
    pile = sheet.raw(struct.pack("<I", length) * count)
    sheet.link(rows, "inputs", pile + 4 * np.arange(graphs))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _overlapping_strings(count: int) -> bytes:
    """Values of metadata that lie over one another, each with a character of four bytes."""
    sheet = Sheet()
    root = program(sheet, "metadata")
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
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _text_of_four_bytes(count: int) -> bytes:
    """Values of metadata of a megabyte each, one character of which makes them four times that."""
    sheet = Sheet()
    root = program(sheet, "metadata")
    entries = max(count // 2**20, 1)
    vector = sheet.children(root, "metadata", entries)
    rows = sheet.tables("Entry", "key value", entries)
    sheet.point(vector, rows.at)
    sheet.link(rows, "key", sheet.names("k", entries))
    text = b"a" * (min(count, 2**20) - 64) + "\U0001f600".encode()
    sheet.link(rows, "value", [sheet.string(text) for _ in range(entries)])
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _plain_text(count: int) -> bytes:
    """Metadata that a writer might write: text."""
    sheet = Sheet()
    root = program(sheet, "metadata")
    entries = max(count // 2**20, 1)
    vector = sheet.children(root, "metadata", entries)
    rows = sheet.tables("Entry", "key value", entries)
    sheet.point(vector, rows.at)
    sheet.link(rows, "key", sheet.names("k", entries))
    text = b"a" * (min(count, 2**20) - 64)
    sheet.link(rows, "value", [sheet.string(text) for _ in range(entries)])
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _long_names(count: int) -> bytes:
    """Regions that share one name, far too long, with characters that must be looked at."""
    sheet = Sheet()
    root = program(sheet, "regions")
    vector = sheet.children(root, "regions", 250)
    rows = sheet.tables("Region", "name dtype role", 250)
    sheet.point(vector, rows.at)
    sheet.put(rows, "dtype", 9)
    sheet.put(rows, "role", 3)
    sheet.link(rows, "name", sheet.string("\u00e9" * (count // 2)))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _vtables(count: int) -> bytes:
    """Regions each of which has a vtable of its own."""
    sheet = Sheet()
    root = program(sheet, "regions")
    vector = sheet.children(root, "regions", count)
    head = struct.pack("<HHHHHH", 12, 12, 4, 0, 8, 9)
    vtables = sheet.raw(head * count) + 12 * np.arange(count, dtype=np.int64)
    at = sheet.take(12 * count) + 12 * np.arange(count, dtype=np.int64)
    sheet.point(vector, at)
    names = sheet.names("r", count)
    sheet.columns += [(at, "i", at - vtables), (at + 4, "I", names - at - 4)]
    sheet.columns += [(at + 8, "B", 9), (at + 9, "B", 3)]
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _segments(count: int) -> bytes:
    """Constants of no bytes."""
    sheet = Sheet()
    root = program(sheet, "segments regions")
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
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _everything(count: int) -> bytes:
    """A valid program of so many tables, all different, that spends all other budgets too."""
    sheet = Sheet()
    root = program(sheet, "regions graphs sections schedules")
    third = count // 3
    parts = 20
    schedule(sheet, root, np.arange(parts))
    vector = sheet.children(root, "regions", third)
    homes = sheet.tables("Region", "name dtype role shape", third)
    sheet.point(vector, homes.at)
    sheet.put(homes, "dtype", 9)
    sheet.put(homes, "role", 3)
    graph = graph_of(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", third)
    values = sheet.tables("Value", "name dtype shape region", third)
    sheet.point(vector, values.at)
    sheet.put(values, "dtype", 9)
    sheet.put(values, "region", np.where(np.arange(third) < 100, np.arange(third), -1))
    vector = sheet.children(graph, "nodes", third - 200)
    nodes = sheet.tables("Node", "op arg_tags arg_bits outputs module source", third - 200)
    sheet.point(vector, nodes.at)
    steps = sections(sheet, root, "nodes reads", parts)
    names = sheet.names("n", third)
    sheet.link(homes, "name", names)
    sheet.link(values, "name", names)
    sheet.link(homes, "shape", sheet.vector("q", [2, 3]))
    sheet.link(values, "shape", sheet.vector("q", [2, 3]))
    few = max(min(third - 200, (1_000_000 - third * 10) // 40), 1)
    each = max(min(few // 4, (third - 200) // parts), 1)
    run = [sheet.vector("i", each * i + np.arange(each)) for i in range(parts)]
    sheet.link(steps, "nodes", run)
    sheet.link(steps, "reads", sheet.vector("i", np.arange(few)))
    sheet.link(nodes, "op", sheet.string("aten.add.Tensor"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", list(b"\2\2\5")))
    sheet.link(nodes, "arg_bits", sheet.vector("q", [0, 1, 1]))
    sheet.link(nodes, "outputs", singles(sheet, 100 + np.arange(third - 200)))
    sheet.link(nodes, "module", sheet.string("net__layer"))
    sheet.link(nodes, "source", sheet.string("net.py:7"))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _differentiated(count: int) -> bytes:
    """Nodes that are run, run again and differentiated, each with a gradient of its own."""
    sheet = Sheet()
    root = sheet.tables("Program", "name mapping regions graphs sections schedules")
    schedule(sheet, root, [0, 1])
    each = count // 3
    regions(sheet, root, 1 + each, role=np.where(np.arange(1 + each) == 0, 3, 7))
    graph = graph_of(sheet, root, "values nodes")
    vector = sheet.children(graph, "values", each)
    values = sheet.tables("Value", "name dtype region grad_region needs_grad", each)
    sheet.point(vector, values.at)
    sheet.put(values, "dtype", 9)
    sheet.put(values, "region", 0)
    sheet.put(values, "grad_region", 1 + np.arange(each))
    sheet.put(values, "needs_grad", 1)
    vector = sheet.children(graph, "nodes", each)
    nodes = sheet.tables("Node", "op arg_tags arg_bits", each)
    sheet.point(vector, nodes.at)
    steps = sections(
        sheet, root, "nodes recompute reads writes", 2, kind=np.array([2, 3]), twin=[0, 1]
    )
    every, nothing = sheet.vector("i", np.arange(each)), sheet.vector("i", [])
    sheet.link(steps, "nodes", every)
    sheet.link(steps, "recompute", [nothing, every])
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", [nothing, sheet.vector("i", 1 + np.arange(each))])
    sheet.link(values, "name", sheet.names("v", each))
    sheet.link(nodes, "op", sheet.string("aten.relu.default"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", [2]))
    sheet.link(nodes, "arg_bits", long_singles(sheet, np.arange(each)))
    sheet.link(graph, "name", sheet.string("g"))
    named(sheet, root)
    return sheet.pef(root)


@heavy
def _custom_gradient(count: int) -> bytes:
    """A custom gradient of one value, which a node takes again and again."""
    sheet = Sheet()
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes gradients")
    vector = sheet.children(graph, "values", 1)
    value = sheet.tables("Value", "name dtype region")
    sheet.point(vector, value.at)
    sheet.put(value, "dtype", 9)
    sheet.put(value, "region", 0)
    vector = sheet.children(graph, "nodes", 1)
    node = sheet.tables("Node", "op arg_tags arg_bits")
    sheet.point(vector, node.at)
    vector = sheet.children(graph, "gradients", 1)
    gradient = sheet.tables("Gradient", "name values inputs outputs")
    sheet.point(vector, gradient.at)
    vector = sheet.children(gradient, "values", 1)
    inner = sheet.tables("Value", "name dtype")
    sheet.point(vector, inner.at)
    sheet.put(inner, "dtype", 9)
    steps = sections(sheet, root, "nodes reads", 1)
    zero = sheet.vector("i", [0])
    sheet.link(steps, "nodes", zero)
    sheet.link(steps, "reads", zero)
    sheet.link(gradient, "inputs", zero)
    sheet.link(gradient, "outputs", sheet.vector("i", np.zeros(count)))
    # Its index, no results, the value as every input, and what the gradient reads.
    sheet.link(node, "arg_tags", sheet.vector("B", list(b"\5\x08\x08" + b"\2" * count + b"\x08\2")))
    sheet.link(node, "arg_bits", sheet.vector("q", np.array([0, 0, count, *[0] * count, 1, 0])))
    sheet.link(node, "op", sheet.string("samba.custom_gradient"))
    for named_ in (value, inner, gradient, graph):
        sheet.link(named_, "name", sheet.string("a"))
    named(sheet, root)
    return sheet.pef(root)
