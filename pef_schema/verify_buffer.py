"""Check a FlatBuffer against its schema and hand out its values, in one iterative walk.

FlatBuffers for Python has no verifier: its readers follow whatever offsets they find. Here every
offset, vtable, length, alignment and string is checked before it is used, with budgets for
tables, nesting and size, and nothing recurses, so that no bytes can make it hang, exhaust the
stack or raise anything but a ``PefError``.

A buffer may share strings and vectors of numbers, but reaches each table once. (Shared tables let
a few hundred bytes stand for a hundred thousand nodes.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from pef_schema.errors import PefLimit, PefMalformed
from pef_schema.limits import LIMITS, Limits
from pef_schema.tables import Field, Kind, Row, Schema, Table

_UINT = struct.Struct("<I")
_INT = struct.Struct("<i")
_VTABLE_HEAD = struct.Struct("<HH")
_OFFSET_SIZE = 4
_BOOLS = b"\0\1"
_EMPTY: dict[Kind, Any] = {
    Kind.STRING: "",
    Kind.SCALARS: (),
    Kind.STRINGS: (),
    Kind.TABLES: (),
}


def read_tables(
    data: bytes, schema: Schema, *, base: int = 0, path: str | None = None, limits: Limits = LIMITS
) -> Row:
    """Check all of a FlatBuffer and return its content.

    Args:
        data: The FlatBuffer. Alignment is counted from its first byte.
        schema: What it should hold. Fields that the schema does not know are ignored.
        base: Offset of ``data`` in the file, for messages.
        path: The file, for messages.
        limits: Budgets.

    Returns:
        The root table's row (see :data:`pef_schema.tables.Row`).

    Raises:
        PefMalformed: If it breaks a rule of the encoding or of the schema.
        PefLimit: If it exceeds a budget.
    """
    return _Walk(data, schema, base, path, limits).run()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Way to read the tables of one vtable: one ``unpack``, then the references."""

    unpack: struct.Struct
    blank: Row
    scalars: tuple[tuple[int, int], ...]
    bools: tuple[int, ...]
    references: tuple[tuple[int, int, int, Field], ...]


class _Walk:
    """State of one walk; positions are offsets into ``data``."""

    def __init__(
        self, data: bytes, schema: Schema, base: int, path: str | None, limits: Limits
    ) -> None:
        self.data, self.schema, self.base, self.path, self.limits = data, schema, base, path, limits
        self.size = len(data)
        self.expanded = 0
        self.tables = 0
        self.strings: dict[int, str] = {}
        self.lengths: dict[int, int] = {}
        self.vectors: dict[tuple[int, str], Any] = {}
        self.layouts: dict[tuple[str, int, int], _Layout] = {}
        self.seen: set[int] = set()

    def run(self) -> Row:
        """Walk from the root; a work item is a vector of tables not yet looked into."""
        root = self.root_position()
        rows: list[Row] = []
        self.count_tables(1, root)
        work: list[tuple[Table, tuple[int, ...], int, list[Row]]] = [
            (self.schema.tables[self.schema.root], (root,), 1, rows)
        ]
        while work:
            table, positions, depth, out = work.pop()
            if depth > self.limits.depth:
                raise self.limit("depth of tables", self.limits.depth, depth, positions[0])
            for position in positions:
                layout = self.layout(table, position)
                values = layout.unpack.unpack_from(self.data, position)
                row = layout.blank.copy()
                for field_id, index in layout.scalars:
                    row[field_id] = values[index]
                for field_id in layout.bools:
                    if row[field_id] not in _BOOLS:
                        raise self.malformed(f"a bool is {row[field_id]}", position)
                for field_id, index, start, field in layout.references:
                    offset = values[index]
                    if not offset:
                        raise self.malformed("a reference to itself", position + start)
                    target = position + start + offset
                    if field.kind is Kind.STRING:
                        row[field_id] = self.string(target)
                    elif field.kind is Kind.SCALARS:
                        row[field_id] = self.scalars(target, field.code)
                    elif field.kind is Kind.STRINGS:
                        row[field_id] = tuple(map(self.string, self.offsets(target)))
                    else:
                        self.count_tables(self.length(target, _OFFSET_SIZE), target)
                        children = self.offsets(target)
                        inner: list[Any] = []
                        row[field_id] = inner
                        if children:
                            child = self.schema.tables[field.table]
                            work.append((child, children, depth + 1, inner))
                out.append(row)
        return rows[0]

    def root_position(self) -> int:
        """Check identifier and root offset."""
        if self.size < 2 * _OFFSET_SIZE:
            raise self.malformed(f"metadata of {self.size} bytes, at least 8 are needed", 0)
        found = self.data[4:8]
        if found != self.schema.identifier:
            raise self.malformed(f"file identifier {found}, wanted {self.schema.identifier}", 4)
        root = _UINT.unpack_from(self.data)[0]
        if root < 2 * _OFFSET_SIZE:
            raise self.malformed(f"root offset {root}, at least 8 is needed", 0)
        return root

    def layout(self, table: Table, position: int) -> _Layout:
        """Check a table's place, its vtable and its size; one vtable is examined once."""
        if position % _OFFSET_SIZE or position + _OFFSET_SIZE > self.size:
            raise self.malformed(f"table {table.name} lies outside or is misaligned", position)
        if position in self.seen:
            raise self.malformed(f"table {table.name} is reached twice", position)
        self.seen.add(position)
        vtable = position - _INT.unpack_from(self.data, position)[0]
        # Fields of 8 bytes are aligned to 8, tables to 4, so one vtable serves two alignments.
        key = (table.name, vtable, position & 7)
        layout = self.layouts.get(key)
        if layout is None:
            layout = self.layouts[key] = self.new_layout(table, vtable, position)
        if position + layout.unpack.size > self.size:
            raise self.malformed(f"table {table.name} ends outside", position)
        return layout

    def new_layout(self, table: Table, vtable: int, position: int) -> _Layout:
        """Check a vtable and turn it into one ``struct`` format for the whole table."""
        if vtable < 0 or vtable % 2 or vtable + _VTABLE_HEAD.size > self.size:
            raise self.malformed(f"vtable of {table.name} lies outside or is misaligned", position)
        vtable_size, table_size = _VTABLE_HEAD.unpack_from(self.data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size:
            raise self.malformed(f"vtable of {table.name} has size {vtable_size}", vtable)
        self.count_bytes(vtable_size, vtable)
        if table_size < _OFFSET_SIZE:
            raise self.malformed(f"table {table.name} has size {table_size}", vtable)
        starts = struct.unpack_from(f"<{vtable_size // 2 - 2}H", self.data, vtable + 4)
        for start in starts[len(table.fields) :]:
            if start >= table_size:
                raise self.malformed(f"a later field of {table.name} lies outside", vtable)
        present: list[tuple[int, int, Field, int]] = []
        for field_id, field in enumerate(table.fields):
            start = starts[field_id] if field_id < len(starts) else 0
            if not start:
                if field.required:
                    raise self.malformed(f"{table.name}.{field.name} is missing", position)
                continue
            size = struct.calcsize(f"<{field.code}") if field.kind is Kind.SCALAR else _OFFSET_SIZE
            if start + size > table_size or (position + start) % size:
                raise self.malformed(
                    f"{table.name}.{field.name} lies outside its table or is misaligned", vtable
                )
            present.append((start, field_id, field, size))
        return self.compile_layout(table, table_size, sorted(present, key=lambda p: p[0]), vtable)

    def compile_layout(
        self, table: Table, table_size: int, present: list[tuple[int, int, Field, int]], vtable: int
    ) -> _Layout:
        """Make the layout from the fields that are present, in the order of their offsets."""
        code, end = "<", 0
        scalars: list[tuple[int, int]] = []
        references: list[tuple[int, int, int, Field]] = []
        bools: list[int] = []
        for index, (start, field_id, field, size) in enumerate(present):
            if start < max(end, _OFFSET_SIZE):
                raise self.malformed(f"{table.name}.{field.name} overlaps its neighbour", vtable)
            code += f"{start - end}x"
            end = start + size
            if field.kind is Kind.SCALAR:
                code += field.code.replace("?", "B")
                scalars.append((field_id, index))
                if field.code == "?":
                    bools.append(field_id)
            else:
                code += "I"
                references.append((field_id, index, start, field))
        return _Layout(
            unpack=struct.Struct(f"{code}{table_size - end}x"),
            blank=[
                f.default if f.kind is Kind.SCALAR else _EMPTY[f.kind] for f in table.fields
            ],
            scalars=tuple(scalars),
            bools=tuple(bools),
            references=tuple(references),
        )  # fmt: skip

    def string(self, position: int) -> str:
        """Check and decode the string at ``position``."""
        text = self.strings.get(position)
        if text is None:
            length = self.length(position, 1)
            end = position + _OFFSET_SIZE + length
            if end >= self.size or self.data[end]:
                raise self.malformed("a string has no terminating zero", position)
            try:
                text = self.data[position + _OFFSET_SIZE : end].decode()
            except UnicodeDecodeError:
                raise self.malformed("a string is not UTF-8", position) from None
            self.strings[position] = text
            self.lengths[position] = length
        self.count_bytes(self.lengths[position], position)
        return text

    def scalars(self, position: int, code: str) -> Any:
        """Check and unpack the vector of scalars at ``position``."""
        key = (position, code)
        values = self.vectors.get(key)
        if values is None:
            width = struct.calcsize(f"<{code}")
            count = self.length(position, width)
            start = position + _OFFSET_SIZE
            if start % width:
                raise self.malformed("a vector's elements are misaligned", position)
            self.count_bytes(count * width, position)
            if code == "B":
                values = self.data[start : start + count]
            else:
                values = struct.unpack_from(f"<{count}{code}", self.data, start)
            self.vectors[key] = values
            return values
        self.count_bytes(len(values) * struct.calcsize(f"<{code}"), position)
        return values

    def offsets(self, position: int) -> tuple[int, ...]:
        """Check the vector of references at ``position`` and return their targets."""
        count = self.length(position, _OFFSET_SIZE)
        self.count_bytes(count * _OFFSET_SIZE, position)
        start = position + _OFFSET_SIZE
        found = struct.unpack_from(f"<{count}I", self.data, start)
        if 0 in found:
            raise self.malformed("a reference to itself", start + _OFFSET_SIZE * found.index(0))
        return tuple([start + _OFFSET_SIZE * i + offset for i, offset in enumerate(found)])

    def length(self, position: int, width: int) -> int:
        """Check the length at ``position`` of elements of ``width`` bytes."""
        start = position + _OFFSET_SIZE
        if position % _OFFSET_SIZE or start > self.size:
            raise self.malformed("a string or vector lies outside or is misaligned", position)
        length = _UINT.unpack_from(self.data, position)[0]
        if length * width > self.size - start:
            raise self.malformed(
                f"a string or vector needs {length * width} bytes, {self.size - start} are left",
                position,
            )
        return length

    def count_tables(self, count: int, position: int) -> None:
        """Spend the budget of tables."""
        self.tables += count
        if self.tables > self.limits.tables:
            raise self.limit("tables", self.limits.tables, self.tables, position)

    def count_bytes(self, count: int, position: int) -> None:
        """Spend the budget of bytes; a shared string or vector counts at each use."""
        self.expanded += count
        if self.expanded > self.limits.expanded:
            raise self.limit(
                "bytes of strings and vectors", self.limits.expanded, self.expanded, position
            )

    def malformed(self, what: str, position: int) -> PefMalformed:
        """Make the error for what was found at ``position``."""
        return PefMalformed(what, path=self.path, offset=self.base + position)

    def limit(self, what: str, need: int, have: int, position: int) -> PefLimit:
        """Make the error for an overspent budget."""
        return PefLimit(
            f"{have} {what}, at most {need} are allowed",
            path=self.path,
            offset=self.base + position,
            need=need,
            have=have,
        )
