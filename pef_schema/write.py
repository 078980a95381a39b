"""Write a program to a PEF."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers  # pyright: ignore[reportMissingTypeStubs]  # there are none

from pef_schema._generated.pef import SCHEMA
from pef_schema.atomic import write_together
from pef_schema.envelope import HEADER_SIZE, MIN_READER, PefInfo, align, make_head
from pef_schema.limits import LIMITS, Limits
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import Program, Role
from pef_schema.program_facts import has_complex
from pef_schema.rows import to_rows
from pef_schema.tables import Kind, Row, Schema, Table
from pef_schema.verify import verify
from pef_schema.verify_buffer import read_tables


def write_pef(
    path: str | os.PathLike[str],
    program: Program,
    *,
    limits: Limits = LIMITS,
    log: Callable[[PefInfo], str] | None = None,
) -> PefInfo:
    """Write a program to a file, which afterwards is the old one or the new one, never a part.

    Args:
        path: The file; its folder must exist.
        program: The program.
        limits: Bounds to keep.
        log: Says what the file ``<path>.log`` tells people about this one; without it, none is
            written. At no moment the log of another program stands beside the PEF: a process that
            is killed between the two leaves none.

    Returns:
        What the file's header says.

    Raises:
        PefInvalid: If the program contradicts itself; nothing is written.
        PefLimit: If it is too large; nothing is written.
        PefUnwritable: If the folder or the disk refuses; the old files are untouched, unless the
            message says that the new one is in place.
    """
    name = os.fspath(path)
    head, info = _head(program, name, limits)
    beside = {} if log is None else {f"{name}.log": [log(info).encode()]}
    write_together(name, _chunks(head, info, program), beside)
    return info


def encode(program: Program, *, limits: Limits = LIMITS) -> bytes:
    """Return the bytes of a program's PEF; equal programs give equal bytes.

    Args:
        program: The program.
        limits: Bounds to keep.

    Returns:
        The content of the file.

    Raises:
        PefInvalid: If the program contradicts itself.
        PefLimit: If it is too large.
    """
    head, info = _head(program, None, limits)
    return b"".join(_chunks(head, info, program))


def version_of(program: Program) -> int:
    """The oldest format version that can say what a program says.

    Args:
        program: The program.

    Returns:
        2 for a program with custom gradients, which an older reader would take for derivatives, 3
        for one with an optimizer whose update rule is younger, 4 for one with complex numbers or
        with a forward pass that changes a weight; 1 for all others, whose bytes are those of
        version 1.
    """
    since = [2 for graph in program.graphs if graph.gradients]
    since += [4] if has_complex(program) or _changes_weights(program) else []
    since += [OPTIMIZER_RULES[optimizer.kind].since for optimizer in program.optimizers]
    return max(since, default=MIN_READER)


def _changes_weights(program: Program) -> bool:
    """Whether a forward pass changes a weight, as an embedding with ``max_norm`` does."""
    updates = [update for graph in program.graphs for update in graph.updates]
    return any(program.regions[update.region].role is Role.WEIGHT for update in updates)


def lay_out(lengths: list[int]) -> tuple[list[int], int]:
    """Place segments one after the other, each on a page boundary.

    Args:
        lengths: Their sizes in bytes.

    Returns:
        Their offsets from the start of the data, and the length of the data.
    """
    offsets: list[int] = []
    end = 0
    for length in lengths:
        offsets.append(align(end))
        end = offsets[-1] + length
    return offsets, end


def _head(program: Program, path: str | None, limits: Limits) -> tuple[bytes, PefInfo]:
    """Return header and metadata as one piece."""
    verify(program, limits=limits)
    offsets, data_length = lay_out([len(segment) for segment in program.segments])
    rows: list[Row] = [
        (offset, len(segment), hashlib.sha256(segment).digest())
        for offset, segment in zip(offsets, program.segments, strict=True)
    ]
    metadata = write_tables(SCHEMA, to_rows(program, rows))
    head, info = make_head(
        metadata, data_length, version=version_of(program), path=path, limits=limits
    )
    # What no reader would take is not written; this holds every budget of reading.
    read_tables(metadata, SCHEMA, base=HEADER_SIZE, path=path, limits=limits)
    return head, info


def _chunks(head: bytes, info: PefInfo, program: Program) -> Iterator[bytes]:
    """Yield the file's content without joining large constants."""
    yield head
    if not info.data_length:
        return
    end = HEADER_SIZE + info.metadata_length
    for segment in program.segments:
        yield bytes(align(end) - end)
        yield segment
        end = align(end) + len(segment)


_SLOT = {
    "?": "PrependBoolSlot",
    "b": "PrependInt8Slot",
    "B": "PrependUint8Slot",
    "h": "PrependInt16Slot",
    "H": "PrependUint16Slot",
    "i": "PrependInt32Slot",
    "I": "PrependUint32Slot",
    "q": "PrependInt64Slot",
    "Q": "PrependUint64Slot",
    "f": "PrependFloat32Slot",
    "d": "PrependFloat64Slot",
}
_OFFSET_SIZE = 4


def write_tables(schema: Schema, row: Row) -> bytes:
    """Encode the root table's row.

    Equal strings, and equal vectors of scalars, are stored once. The bytes depend on the row alone.

    Args:
        schema: What the row holds.
        row: Values in the order of the root table's fields (see :data:`pef_schema.tables.Row`).

    Returns:
        The FlatBuffer with its file identifier.
    """
    writer = _Writer(schema)
    root = writer.table(schema.tables[schema.root], row)
    writer.builder.Finish(root, file_identifier=schema.identifier)
    return bytes(writer.builder.Output())


class _Writer:
    """A builder, and the places of what it has stored already."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.builder: Any = flatbuffers.Builder(1 << 16)
        self.stored: dict[tuple[str, Any], int] = {}
        self.plans = {name: self.plan(table) for name, table in schema.tables.items()}

    def plan(self, table: Table) -> list[tuple[int, Any, int | float]]:
        """Order of a table's fields: widest first, so that no padding is needed between them."""
        fields: list[tuple[tuple[int, int], Any, int | float]] = []
        for field_id, field in enumerate(table.fields):
            if field.kind is Kind.SCALAR:
                width, slot = struct.calcsize(f"<{field.code}"), _SLOT[field.code]
            else:
                width, slot = _OFFSET_SIZE, "PrependUOffsetTRelativeSlot"
            # A value equal to the default is left out, but -0.0 equals 0.0: store every float.
            default = math.nan if field.code in ("f", "d") else field.default
            fields.append(((-width, field_id), getattr(self.builder, slot), default))
        fields.sort(key=lambda entry: entry[0])
        return [(field_id, slot, default) for (_, field_id), slot, default in fields]

    def table(self, table: Table, row: Row) -> int:
        """Store a table after all it refers to; the nesting is that of the schema."""
        values = list(row)
        for field_id, field in enumerate(table.fields):
            value = values[field_id]
            if field.kind is Kind.SCALAR:
                continue
            if not value and not field.required:
                values[field_id] = 0
            elif field.kind is Kind.STRING:
                values[field_id] = self.string(value)
            elif field.kind is Kind.SCALARS:
                values[field_id] = self.scalars(value, field.code)
            elif field.kind is Kind.STRINGS:
                values[field_id] = self.offsets([self.string(text) for text in value])
            else:
                child = self.schema.tables[field.table]
                values[field_id] = self.offsets([self.table(child, inner) for inner in value])
        builder = self.builder
        builder.StartObject(len(table.fields))
        for field_id, slot, default in self.plans[table.name]:
            slot(field_id, values[field_id], default)
        return builder.EndObject()

    def string(self, text: str) -> int:
        """Store a string once."""
        key = ("", text)
        if key not in self.stored:
            self.stored[key] = self.builder.CreateString(text)
        return self.stored[key]

    def scalars(self, values: tuple[int, ...] | bytes, code: str) -> int:
        """Store a vector of scalars once."""
        raw = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{code}", *values)
        key = (code, raw)
        if key not in self.stored:
            width = struct.calcsize(f"<{code}")
            self.builder.StartVector(width, len(values), width)
            self.builder.head -= len(raw)
            self.builder.Bytes[self.builder.head : self.builder.head + len(raw)] = raw
            self.stored[key] = self.builder.EndVector()
        return self.stored[key]

    def offsets(self, targets: list[int]) -> int:
        """Store a vector of references."""
        self.builder.StartVector(_OFFSET_SIZE, len(targets), _OFFSET_SIZE)
        for target in reversed(targets):
            self.builder.PrependUOffsetTRelative(target)
        return self.builder.EndVector()
