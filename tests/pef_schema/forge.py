"""Makes PEFs that no writer would: wrong in one place, and right in all others, digest included."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable
from typing import Any

from pef_schema import MIN_READER, Limits, Program
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE, data_offset, make_header
from pef_schema.rows import to_rows
from pef_schema.tables import Field, Kind, Schema
from pef_schema.write import lay_out, write_tables

BOUNDLESS = Limits(**{field.name: 2**62 for field in dataclasses.fields(Limits)})


def seal(
    metadata: bytes,
    data: bytes = b"",
    *,
    min_reader: int = MIN_READER,
    writer: int = MIN_READER,
) -> bytes:
    """Put a right header before metadata and data."""
    header = make_header(
        metadata, len(data), min_reader=min_reader, writer=writer, limits=BOUNDLESS
    )
    gap = data_offset(len(metadata), len(data)) - HEADER_SIZE - len(metadata)
    return header + metadata + bytes(gap) + data


def metadata_of(pef: bytes) -> bytes:
    """Return a good file's metadata."""
    (length,) = struct.unpack_from("<I", pef, 16)
    return pef[HEADER_SIZE : HEADER_SIZE + length]


def data_of(pef: bytes) -> bytes:
    """Return a good file's data."""
    start, length = struct.unpack_from("<IQ", pef, 20)
    return pef[start : start + length]


def rows_of(program: Program) -> list[Any]:
    """Return the root row of a program without checking it."""
    offsets, _ = lay_out([len(segment) for segment in program.segments])
    segments = [
        (offset, len(segment), hashlib.sha256(segment).digest())
        for offset, segment in zip(offsets, program.segments, strict=True)
    ]
    return list(to_rows(program, segments))


def pack_data(program: Program) -> bytes:
    """Return the data of a program: its segments on page boundaries."""
    data = b""
    offsets, _ = lay_out([len(segment) for segment in program.segments])
    for offset, segment in zip(offsets, program.segments, strict=True):
        data += bytes(offset - len(data)) + segment
    return data


def encode_unchecked(program: Program, schema: Schema = SCHEMA) -> bytes:
    """Encode a program that may be wrong."""
    return seal(write_tables(schema, rows_of(program)), pack_data(program))


def encode_rows(program: Program, change: Callable[[list[Any]], None]) -> bytes:
    """Encode a program after ``change`` has altered its root row."""
    rows = thaw(rows_of(program))
    change(rows)
    return seal(write_tables(SCHEMA, rows), pack_data(program))


def thaw(row: Any) -> Any:
    """Turn rows, but not vectors of scalars, into lists that can be changed."""

    def table(name: str, values: Any) -> list[Any]:
        changed = list(values)
        for index, field in enumerate(SCHEMA.tables[name].fields):
            if field.kind is Kind.TABLES:
                changed[index] = [table(field.table, inner) for inner in changed[index]]
        return changed

    return table(SCHEMA.root, row)


def later_schema() -> Schema:
    """Return the schema of a later minor version: the root table has one more field."""
    field = Field(name="extra", kind=Kind.SCALAR, code="i")
    root = SCHEMA.tables[SCHEMA.root]
    later = dataclasses.replace(root, fields=(*root.fields, field))
    return dataclasses.replace(SCHEMA, tables={**SCHEMA.tables, root.name: later})


def later_metadata(program: Program) -> bytes:
    """Return metadata with a field that this version does not know."""
    return write_tables(later_schema(), [*rows_of(program), 7])


class Map:
    """Positions inside the metadata of a good file.

    Args:
        metadata: The FlatBuffer.
    """

    def __init__(self, metadata: bytes) -> None:
        self.data = bytearray(metadata)

    def u32(self, position: int) -> int:
        """Return the number at a position."""
        return struct.unpack_from("<I", self.data, position)[0]

    def root(self) -> int:
        """Return the position of the root table."""
        return self.u32(0)

    def vtable(self, table: int) -> int:
        """Return the position of a table's vtable."""
        return table - struct.unpack_from("<i", self.data, table)[0]

    def slot(self, table: int, field_id: int) -> int:
        """Return the position of a field's entry in a table's vtable."""
        return self.vtable(table) + 4 + 2 * field_id

    def field(self, table: int, field_id: int) -> int:
        """Return the position of a present field."""
        (start,) = struct.unpack_from("<H", self.data, self.slot(table, field_id))
        assert start
        return table + start

    def target(self, position: int) -> int:
        """Return where the reference at a position leads."""
        return position + self.u32(position)

    def child(self, table: int, field_id: int, index: int = 0) -> int:
        """Return the position of an element of a vector of tables."""
        vector = self.target(self.field(table, field_id))
        return self.target(vector + 4 + 4 * index)

    def put(self, code: str, position: int, number: int) -> Map:
        """Overwrite a number."""
        struct.pack_into(f"<{code}", self.data, position, number)
        return self

    def sealed(self, data: bytes = b"") -> bytes:
        """Return a file of the changed metadata."""
        return seal(bytes(self.data), data)
