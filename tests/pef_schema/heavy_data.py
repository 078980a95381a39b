"""Files with as much data of one kind as they may have: tables, arguments, text, vectors."""

from __future__ import annotations

import struct

import numpy as np

from tests.pef_schema.heavy_parts import (
    graph_of,
    heavy,
    long_singles,
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
def _regions_alone(sheet: Sheet, count: int) -> Tables:
    root = program(sheet, "regions")
    regions(sheet, root, count)
    return root


@heavy
def _values(sheet: Sheet, count: int) -> Tables:
    root = program(sheet, "graphs schedules")
    schedule(sheet, root)
    graph = graph_of(sheet, root, "values")
    rows = sheet.rows(graph, "values", "Value", "shape", count, stem="v", dtype=9)
    shapes = sheet.take(24 * count, 8, after=4) + 24 * np.arange(count, dtype=np.int64)
    sheet.columns += [(shapes, "I", 2), (shapes + 4, "q", 1000), (shapes + 12, "q", 2000)]
    sheet.link(rows, "shape", shapes)
    return root


def _nodes(
    sheet: Sheet,
    count: int,
    tags: bytes,
    bits: list[int],
    values: int = 1,
    op: str = "aten.add.Tensor",
) -> Tables:
    """A graph of values without a producer, and nodes that all say the same."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes")
    values_of(sheet, graph, values)
    nodes = sheet.rows(graph, "nodes", "Node", "op arg_tags arg_bits outputs module source", count)
    steps = sections(sheet, root, "nodes reads", 1)
    sheet.link(steps, "nodes", sheet.vector("i", np.arange(count)))
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(nodes, "op", sheet.string(op))
    sheet.link(nodes, "arg_tags", sheet.vector("B", list(tags)))
    sheet.link(nodes, "arg_bits", sheet.vector("q", bits))
    sheet.link(nodes, "outputs", sheet.vector("i", [-1]))
    sheet.link(nodes, "module", sheet.string("net__layer"))
    sheet.link(nodes, "source", sheet.string("net.py:7"))
    return root


@heavy
def _nodes_alone(sheet: Sheet, count: int) -> Tables:
    return _nodes(sheet, count, b"\2\2\5", [0, 0, 1])


@heavy
def _tokens(sheet: Sheet, count: int) -> Tables:
    """One node with as many arguments."""
    return _nodes(sheet, 1, b"\2" * count, [i % 1000 for i in range(count)], values=1000)


@heavy
def _floats(sheet: Sheet, count: int) -> Tables:
    return _nodes(sheet, 1, b"\6" * count, list(range(count)))


@heavy
def _sizes(sheet: Sheet, count: int) -> Tables:
    """One node that pads by as many numbers, each of which is a size."""
    bits = [0, count, *range(count)]
    return _nodes(sheet, 1, b"\2\x08" + b"\5" * count, bits, op="aten.constant_pad_nd.default")


@heavy
def _sized_nodes(sheet: Sheet, count: int) -> Tables:
    """Nodes each of which makes something of a size that it is told."""
    return _nodes(sheet, count, b"\x08\5\5\5", [2, 1, 1, 0], op="aten.full.default")


def _one_node(sheet: Sheet, fields: str) -> tuple[Tables, Tables]:
    """The root of a graph of one node, and the node; its fields are to be filled."""
    root = program(sheet, "graphs schedules")
    schedule(sheet, root)
    node = sheet.rows(graph_of(sheet, root, "nodes"), "nodes", "Node", f"op {fields}")
    sheet.link(node, "op", sheet.string("aten.add.Tensor"))
    return root, node


@heavy
def _texts(sheet: Sheet, count: int) -> Tables:
    """One node with as many different strings."""
    root, node = _one_node(sheet, "texts")
    sheet.point(sheet.children(node, "texts", count), sheet.names("", count))
    return root


@heavy
def _keywords(sheet: Sheet, count: int) -> Tables:
    """One node with as many keyword arguments."""
    root, node = _one_node(sheet, "kwarg_names arg_tags arg_bits")
    sheet.point(sheet.children(node, "kwarg_names", count), sheet.names("k", count))
    sheet.link(node, "arg_tags", sheet.vector("B", np.ones(count)))
    sheet.link(node, "arg_bits", sheet.vector("q", np.zeros(count)))
    return root


@heavy
def _overlapping_vectors(sheet: Sheet, count: int) -> Tables:
    """Inputs of graphs that lie over one another, so that each number is part of many."""
    root = program(sheet, "graphs")
    graphs = 1000
    rows = sheet.rows(root, "graphs", "Graph", "inputs", graphs, stem="g")
    length = count - graphs
    pile = sheet.raw(struct.pack("<I", length) * count)
    sheet.link(rows, "inputs", pile + 4 * np.arange(graphs))
    return root


@heavy
def _overlapping_strings(sheet: Sheet, count: int) -> Tables:
    """Values of metadata that lie over one another, each with a character of four bytes."""
    root = program(sheet, "metadata")
    entries = 1000
    rows = sheet.rows(root, "metadata", "Entry", "key value", entries)
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
    return root


@heavy
def _text_of_four_bytes(sheet: Sheet, count: int) -> Tables:
    """Values of metadata of a megabyte each, one character of which makes them four times that."""
    return _metadata(sheet, count, "\U0001f600".encode())


@heavy
def _plain_text(sheet: Sheet, count: int) -> Tables:
    """Metadata that a writer might write: text."""
    return _metadata(sheet, count, b"")


def _metadata(sheet: Sheet, count: int, end: bytes) -> Tables:
    root = program(sheet, "metadata")
    entries = max(count // 2**20, 1)
    rows = sheet.rows(root, "metadata", "Entry", "key value", entries)
    sheet.link(rows, "key", sheet.names("k", entries))
    text = b"a" * (min(count, 2**20) - 64) + end
    sheet.link(rows, "value", [sheet.string(text) for _ in range(entries)])
    return root


@heavy
def _long_names(sheet: Sheet, count: int) -> Tables:
    """Regions that share one name, far too long, with characters that must be looked at."""
    root = program(sheet, "regions")
    rows = sheet.rows(root, "regions", "Region", "name", 250, dtype=9, role=3)
    sheet.link(rows, "name", sheet.string("\u00e9" * (count // 2)))
    return root


@heavy
def _shared_names(sheet: Sheet, count: int) -> Tables:
    """Outputs that share one name, as long as it may be, with a character that is not ASCII."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 2, role=np.array([3, 6]))
    graph = graph_of(sheet, root, "values outputs")
    values_of(sheet, graph)
    columns = {"value": 0, "region": 1, "grad": 3}
    outputs = sheet.rows(graph, "outputs", "Output", "name", count, **columns)
    steps = sections(sheet, root, "reads writes", 1)
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", sheet.vector("i", [1]))
    sheet.link(outputs, "name", sheet.string("x" * 1022 + "\u00e9"))
    return root


@heavy
def _long_vtables(sheet: Sheet, count: int) -> Tables:
    """Updates each of which has a vtable of its own; the vtables are long, and overlap."""
    root = program(sheet, "graphs")
    vector = sheet.children(graph_of(sheet, root, "updates"), "updates", count)
    heads = np.zeros((count, 16), "<u2")
    heads[:, 0], heads[:, 1] = 60_000, 65_535 - np.arange(count)
    vtables = sheet.raw(heads.tobytes() + bytes(60_000)) + 32 * np.arange(count, dtype=np.int64)
    at = sheet.take(4 * count) + 4 * np.arange(count, dtype=np.int64)
    sheet.point(vector, at)
    sheet.columns.append((at, "i", at - vtables))
    sheet.take(65_536)  # the tables end there
    return root


@heavy
def _vtables(sheet: Sheet, count: int) -> Tables:
    """Regions each of which has a vtable of its own."""
    root = program(sheet, "regions")
    vector = sheet.children(root, "regions", count)
    head = struct.pack("<HHHHHH", 12, 12, 4, 0, 8, 9)
    vtables = sheet.raw(head * count) + 12 * np.arange(count, dtype=np.int64)
    at = sheet.take(12 * count) + 12 * np.arange(count, dtype=np.int64)
    sheet.point(vector, at)
    names = sheet.names("r", count)
    sheet.columns += [(at, "i", at - vtables), (at + 4, "I", names - at - 4)]
    sheet.columns += [(at + 8, "B", 9), (at + 9, "B", 3)]
    return root


@heavy
def _segments(sheet: Sheet, count: int) -> Tables:
    """Constants of no bytes."""
    root = program(sheet, "segments regions")
    rows = sheet.rows(root, "segments", "Segment", "sha256", count)
    columns = {"dtype": 9, "role": 4, "segment": np.arange(count)}
    regions = sheet.rows(root, "regions", "Region", "shape", count, stem="r", **columns)
    sheet.link(regions, "shape", sheet.vector("q", [0]))
    empty = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    sheet.link(rows, "sha256", sheet.vector("B", list(empty)))
    return root


@heavy
def _everything(sheet: Sheet, count: int) -> Tables:
    """A valid program of so many tables, all different, that spends all other budgets too."""
    root = program(sheet, "regions graphs sections schedules")
    third = count // 3
    parts = 20
    schedule(sheet, root, np.arange(parts))
    homes = sheet.rows(root, "regions", "Region", "name shape", third, dtype=9, role=3)
    graph = graph_of(sheet, root, "values nodes")
    values = sheet.rows(
        graph,
        "values",
        "Value",
        "name shape",
        third,
        dtype=9,
        region=np.where(np.arange(third) < 100, np.arange(third), -1),
    )
    nodes = sheet.rows(
        graph, "nodes", "Node", "op arg_tags arg_bits outputs module source", third - 200
    )
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
    return root


@heavy
def _differentiated(sheet: Sheet, count: int) -> Tables:
    """Nodes that are run, run again and differentiated, each with a gradient of its own."""
    root = training(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0, 1])
    each = count // 3
    regions(sheet, root, 1 + each, role=np.where(np.arange(1 + each) == 0, 3, 7))
    graph = graph_of(sheet, root, "values nodes")
    values_of(sheet, graph, each, grad_region=1 + np.arange(each), needs_grad=1)
    nodes = sheet.rows(graph, "nodes", "Node", "op arg_tags arg_bits", each)
    steps = sections(
        sheet, root, "nodes recompute reads writes", 2, kind=np.array([2, 3]), twin=[0, 1]
    )
    every, nothing = sheet.vector("i", np.arange(each)), sheet.vector("i", [])
    sheet.link(steps, "nodes", every)
    sheet.link(steps, "recompute", [nothing, every])
    sheet.link(steps, "reads", sheet.vector("i", [0]))
    sheet.link(steps, "writes", [nothing, sheet.vector("i", 1 + np.arange(each))])
    sheet.link(nodes, "op", sheet.string("aten.relu.default"))
    sheet.link(nodes, "arg_tags", sheet.vector("B", [2]))
    sheet.link(nodes, "arg_bits", long_singles(sheet, np.arange(each)))
    return root


@heavy
def _custom_gradient(sheet: Sheet, count: int) -> Tables:
    """A custom gradient of one value, which a node takes again and again."""
    root = program(sheet, "regions graphs sections schedules")
    schedule(sheet, root, [0])
    regions(sheet, root, 1)
    graph = graph_of(sheet, root, "values nodes gradients")
    values_of(sheet, graph)
    node = sheet.rows(graph, "nodes", "Node", "op arg_tags arg_bits")
    gradient = sheet.rows(graph, "gradients", "Gradient", "values inputs outputs", stem="d")
    sheet.rows(gradient, "values", "Value", stem="v", dtype=9)
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
    return root
