"""Write rows as a FlatBuffer: the counterpart of ``verify_buffer``."""

from __future__ import annotations

import math
import struct
from typing import Any

import flatbuffers  # pyright: ignore[reportMissingTypeStubs]  # there are none

from pef_schema.tables import Kind, Row, Schema, Table

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
