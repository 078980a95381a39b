"""Every limit holds at its number and bites one above it, for writers and readers alike."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest

from pef_schema import (
    LIMITS,
    DType,
    Limits,
    Node,
    PefError,
    PefInvalid,
    PefLimit,
    PefMalformed,
    Program,
    Ref,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    decode,
    encode,
)
from pef_schema.envelope import make_header
from pef_schema.tables import Field, Kind, Schema, Table
from pef_schema.verify_buffer import read_tables
from tests.pef_schema.cases import edit
from tests.pef_schema.forge import encode_rows, encode_unchecked, metadata_of
from tests.pef_schema.samples import inference, training

_TREE = Schema(
    tables={
        "T": Table(
            name="T",
            fields=(
                Field(name="children", kind=Kind.TABLES, table="T"),
                Field(name="text", kind=Kind.STRING),
            ),
        )
    },
    root="T",
    identifier=b"TREE",
)
"""A table that contains itself, as none of ours does: what bombs are made of."""


def test_numbers() -> None:
    """The limits of format version 1 are part of the format."""
    assert (LIMITS.metadata, LIMITS.depth, LIMITS.tables) == (64 * 2**20, 64, 160_000)
    assert (LIMITS.items, LIMITS.vtables, LIMITS.work) == (1_000_000, 4096, 1_500_000)
    assert (LIMITS.sections, LIMITS.nodes, LIMITS.rank) == (50_000, 160_000, 16)
    assert (LIMITS.name, LIMITS.file) == (1024, 2**48)


def _both(good: Program, bad: Program, error: type[PefError], text: str, limits: Limits) -> None:
    """Check that the writer and the reader accept one program and refuse the other."""
    assert decode(encode(good, limits=limits), limits=limits) == good
    with pytest.raises(error, match=text):
        encode(bad, limits=limits)
    with pytest.raises(error, match=text):
        decode(encode_unchecked(bad), limits=limits)


def _nested(depth: int, arg: object = ()) -> object:
    for _ in range(depth):
        arg = (arg,)
    return arg


_LIMITED: dict[str, tuple[Callable[[int], Program], int, str]] = {
    "name": (
        lambda n: edit(inference(), "regions.0", name="n" * n),
        LIMITS.name,
        "text of 1025 bytes",
    ),
    "name_utf8": (
        lambda n: edit(inference(), "regions.0", name="\u00e9" * (n // 2) + "x" * (n % 2)),
        LIMITS.name,
        "text of 1025 bytes",
    ),
    "source": (
        lambda n: edit(inference(), "graphs.0.nodes.0", source="s" * n),
        LIMITS.source,
        "text of 4097 bytes",
    ),
    "text_argument": (
        lambda n: edit(inference(), "graphs.0.nodes.0", args=("s" * n,)),
        LIMITS.source,
        "text of 4097 bytes",
    ),
    "text": (
        lambda n: edit(inference(), "", metadata=(("model", "m" * n),)),
        LIMITS.text,
        "text of 1048577 bytes",
    ),
    "rank": (
        lambda n: edit(inference(), "regions.2", shape=(1,) * n),
        LIMITS.rank,
        "rank 17, at most 16",
    ),
    "region_bytes": (
        lambda n: edit(inference(), "regions.2", shape=(n,), dtype=DType.UINT8),
        LIMITS.file,
        "at most 281474976710656 is allowed",
    ),
    "ref_depth": (
        lambda n: edit(inference(), "graphs.0.nodes.0", args=(_nested(n, Ref(0)),)),
        LIMITS.ref_depth,
        "a value inside more than 2 lists",
    ),
}


@pytest.mark.parametrize("name", _LIMITED)
def test_at_and_above(name: str) -> None:
    make, limit, text = _LIMITED[name]
    _both(make(limit), make(limit + 1), PefInvalid, text, LIMITS)


def test_argument_depth() -> None:
    at = edit(inference(), "graphs.0.nodes.0", args=(_nested(LIMITS.arg_depth),))
    above = edit(inference(), "graphs.0.nodes.0", args=(_nested(LIMITS.arg_depth + 1),))
    assert decode(encode(at)) == at
    with pytest.raises(PefInvalid, match="lists nested more than 8 deep"):
        encode(above)
    with pytest.raises(PefInvalid, match="argument tag 8 with number 1"):
        decode(encode_unchecked(above))


def test_nesting_of_sizes() -> None:
    """Of any depth, also where the operation takes sizes, which are looked at first."""
    bad = edit(
        inference(), "graphs.0.nodes.0", op="aten.full.default", args=(_nested(100_000), 1.0)
    )
    with pytest.raises(PefInvalid, match="lists nested more than 8 deep"):
        encode(bad)


def test_sections() -> None:
    def program(count: int) -> Program:
        step = (Step(kind=SectionKind.ZEROGRAD),)
        sections = tuple(Section(name=f"s{i}", steps=step, twin=0) for i in range(count))
        empty = edit(training(), "graphs.0", nodes=(), outputs=(), updates=())
        schedules = (Schedule(graph=0, calls=()),)
        return dataclasses.replace(empty, sections=sections, schedules=schedules)

    limits = dataclasses.replace(LIMITS, sections=5)
    _both(program(5), program(6), PefInvalid, "6 sections, at most 5 are allowed", limits)


def test_nodes() -> None:
    def program(count: int) -> Program:
        return edit(inference(), "graphs.0", nodes=inference().graphs[0].nodes + _NODE * count)

    limits = dataclasses.replace(LIMITS, nodes=50)
    _both(program(49), program(50), PefInvalid, "51 nodes, at most 50 are allowed", limits)


_NODE = (Node(op="a.b.c", args=(), outputs=()),)


@pytest.mark.parametrize(
    ("what", "program", "size"),
    [
        ("metadata", inference(), len(metadata_of(encode(inference())))),
        ("file", training(), len(encode(training()))),
    ],
    ids=["metadata", "file"],
)
def test_size(what: str, program: Program, size: int) -> None:
    exact = dataclasses.replace(LIMITS, **{what: size})
    assert decode(encode(program, limits=exact), limits=exact) == program
    small = dataclasses.replace(LIMITS, **{what: size - 1})
    with pytest.raises(PefLimit, match=f"{what} of {size} bytes, at most {size - 1}"):
        encode(program, limits=small)
    with pytest.raises(PefLimit, match=f"{what} of {size} bytes, at most {size - 1}"):
        decode(encode(program), limits=small)


def test_size_of_a_file_that_is_to_be() -> None:
    with pytest.raises(PefLimit, match="at most 281474976710656 are allowed"):
        make_header(b"", 2**48)


def _chain(depth: int) -> bytes:
    """Return tables each inside the other."""
    builder = flatbuffers.Builder()
    inner = 0
    for _ in range(depth):
        inner = _node(builder, [inner] if inner else [])
    builder.Finish(inner, file_identifier=b"TREE")
    return bytes(builder.Output())


def _node(builder: flatbuffers.Builder, children: list[int]) -> int:
    builder.StartVector(4, len(children), 4)
    for child in reversed(children):
        builder.PrependUOffsetTRelative(child)
    vector = builder.EndVector()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    return builder.EndObject()


def test_depth() -> None:
    read_tables(_chain(LIMITS.depth), _TREE)
    with pytest.raises(PefLimit, match="65 depth of tables, at most 64"):
        read_tables(_chain(LIMITS.depth + 1), _TREE)
    with pytest.raises(PefLimit, match="depth of tables"):
        read_tables(_chain(20_000), _TREE)


def test_shared_children() -> None:
    """Some 400 bytes that stand for 131071 tables."""
    builder = flatbuffers.Builder()
    inner = _node(builder, [])
    for _ in range(16):
        inner = _node(builder, [inner, inner])
    builder.Finish(inner, file_identifier=b"TREE")
    bomb = bytes(builder.Output())
    assert len(bomb) < 600
    with pytest.raises(PefMalformed, match="table T is reached twice"):
        read_tables(bomb, _TREE)


def test_loop() -> None:
    """A table that contains itself."""
    data = bytearray(_chain(2))
    (root,) = struct.unpack_from("<I", data)
    vector = root + 4 + struct.unpack_from("<I", data, root + 4)[0]
    # References lead forward only: count round the 32 bits, back to the root.
    struct.pack_into("<I", data, vector + 4, (root - vector - 4) % 2**32)
    with pytest.raises(PefMalformed, match="lies outside"):
        read_tables(bytes(data), _TREE)


def test_tables() -> None:
    data = _chain(3)
    read_tables(data, _TREE, limits=dataclasses.replace(LIMITS, tables=3))
    with pytest.raises(PefLimit, match="3 tables, at most 2 are allowed"):
        read_tables(data, _TREE, limits=dataclasses.replace(LIMITS, tables=2))


def test_all_tables_and_one() -> None:
    """A vector of as many references as tables are allowed, and the root: nothing is built."""
    count = LIMITS.tables
    vtable = struct.pack("<HHH", 6, 8, 4)
    root = 8 + 8
    head = struct.pack("<I4s", root, b"TREE") + vtable + b"\0\0"
    table = struct.pack("<iI", root - 8, 4)
    data = head + table + struct.pack("<I", count) + struct.pack("<I", 4) * count
    tracemalloc.start()
    with pytest.raises(PefLimit, match="160001 tables, at most 160000"):
        read_tables(data, _TREE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_expansion() -> None:
    """A long string that a thousand tables share counts a thousand times."""
    regions = tuple(
        Region(name=f"r{i}", shape=(), dtype=DType.UINT8, role=Role.BUFFER) for i in range(100)
    )
    program = dataclasses.replace(inference(), regions=inference().regions + regions)
    nodes = _NODE + tuple(dataclasses.replace(node, source="s" * 4000) for node in _NODE * 100)
    program = edit(program, "graphs.0", nodes=inference().graphs[0].nodes + nodes)
    data = encode(program)
    assert len(data) < 20_000
    assert decode(data) == program
    limits = dataclasses.replace(LIMITS, expanded=400_000)
    with pytest.raises(PefLimit, match="bytes of strings and vectors, at most 400000"):
        decode(data, limits=limits)


def test_long_name_in_a_file() -> None:
    data = encode_unchecked(edit(inference(), "regions.0", name="n" * 2**20))
    with pytest.raises(PefInvalid, match="text of 1048576 bytes, at most 1024") as caught:
        decode(data)
    assert len(str(caught.value)) < 2000


def test_vtables_count() -> None:
    """Overlapping vtables of 64 KiB each must not multiply the work."""
    limits = dataclasses.replace(LIMITS, expanded=20)
    with pytest.raises(PefLimit, match="24 bytes of strings and vectors, at most 20"):
        decode(encode(inference()), limits=limits)


def test_long_vector_shared_by_many_steps() -> None:
    """Refused by its length alone, however often it is used."""
    steps = (Step(kind=SectionKind.ZEROGRAD, writes=tuple(range(9_000))),)
    sections = tuple(Section(name=f"s{i}", steps=steps, twin=0) for i in range(100))
    program = dataclasses.replace(inference(), sections=sections, schedules=(), inference=False)
    data = encode_unchecked(program)
    assert len(data) < 2**17
    with pytest.raises(PefInvalid) as caught:
        decode(data)
    assert len(caught.value.problems) == 100
    assert caught.value.problems[99] == "section 99: 9000 writes, but only 3 exist"


def _unknown_tags(root: list[Any]) -> None:
    for node in root[5][0][2]:
        node[1] = b"\x63"


def test_a_thousand_problems_are_enough() -> None:
    nodes = tuple(Node(op="a.b.c", args=(Ref(99),), outputs=()) for _ in range(5000))
    for data in (
        encode_unchecked(edit(inference(), "graphs.0", nodes=nodes)),
        encode_rows(
            edit(inference(), "graphs.0", nodes=nodes),
            _unknown_tags,
        ),
    ):
        with pytest.raises(PefInvalid, match="1000 problems") as caught:
            decode(data, path="net.pef")
        assert len(caught.value.problems) == 1000
        assert caught.value.path == "net.pef"
