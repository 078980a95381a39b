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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import add
from typing import Any

from pef_schema.errors import PefLimit, PefMalformed
from pef_schema.limits import LIMITS, Limits
from pef_schema.tables import Field, Kind, Row, Schema, Table

_UINT = struct.Struct("<I")
_INT = struct.Struct("<i")
_VTABLE_HEAD = struct.Struct("<HH")
_OFFSET_SIZE = 4
_BOOLS = frozenset({0, 1})
_BLOCK = 4096
"""Tables that are unpacked together: many, so that each costs little, and few enough to be small
beside what is kept of them."""
_TABLE_BYTES, _STRING_BYTES, _VECTOR_BYTES, _NUMBER_BYTES = 320, 240, 160, 40
"""What one takes up in memory, all that reading and checking need of it included."""
_EMPTY: dict[Kind, Any] = {
    Kind.STRING: "",
    Kind.SCALARS: (),
    Kind.STRINGS: (),
    Kind.TABLES: (),
}


def read_tables(
    data: bytes | memoryview,
    schema: Schema,
    *,
    base: int = 0,
    path: str | None = None,
    limits: Limits = LIMITS,
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
    blank: tuple[Any, ...]
    scalars: tuple[tuple[int, int], ...]
    bools: tuple[int, ...]
    references: tuple[tuple[int, int, int, Field], ...]


class _Memo(dict[int, Any]):
    """What stands at a position, made when it is first asked for."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, position: int) -> Any:
        value = self[position] = self.make(position)
        return value


_Level = dict[str, tuple[list[int], list[tuple[list[Row], int]]]]
"""Tables of one depth, by name: their positions, and the lists that get so many of their rows."""


class _Walk:
    """State of one walk; positions are offsets into ``data``."""

    def __init__(
        self,
        data: bytes | memoryview,
        schema: Schema,
        base: int,
        path: str | None,
        limits: Limits,
    ) -> None:
        self.data, self.schema, self.base, self.path, self.limits = data, schema, base, path, limits
        self.size = len(data)
        self.expanded = 0
        self.items = 0
        self.tables = 0
        self.memory = 0
        self.most_memory = limits.memory + 3 * self.size // 2
        self.strings = _Memo(self.new_string)
        self.vectors: dict[str, _Memo] = {}
        self.layouts: dict[tuple[str, int], _Layout] = {}
        self.seen: set[int] = set()

    def run(self) -> Row:
        """Walk from the root, one depth after the other, all tables of a kind together."""
        root = self.root_position()
        rows: list[Row] = []
        self.count_tables(1, root)
        level: _Level = {self.schema.root: ([root], [(rows, 1)])}
        depth = 0
        while level:
            depth += 1
            below: _Level = {}
            for name, (positions, outs) in level.items():
                if depth > self.limits.depth:
                    raise self.limit("depth of tables", self.limits.depth, depth, positions[0])
                stream = iter(self.all_rows(self.schema.tables[name], positions, below))
                for out, count in outs:
                    out.extend(islice(stream, count))
            level = below
        return rows[0]

    def all_rows(self, table: Table, positions: list[int], below: _Level) -> list[Row]:
        """Check and read tables of one kind; those they refer to are added to ``below``."""
        fresh = set(positions)
        if len(fresh) != len(positions) or not fresh.isdisjoint(self.seen):
            for position in positions:
                if position in self.seen:
                    raise self.malformed(f"table {table.name} is reached twice", position)
                self.seen.add(position)
        self.seen |= fresh
        rows: list[Row] = []
        for start in range(0, len(positions), _BLOCK):
            block = positions[start : start + _BLOCK]
            keys = self.layout_keys(table, block)
            if keys.count(keys[0]) == len(keys):
                rows += self.rows(table, keys[0], block, below)
                continue
            groups: dict[int, list[int]] = {}
            for index, key in enumerate(keys):
                groups.setdefault(key, []).append(index)
            block_rows: list[Row] = [None] * len(block)
            for key, indices in groups.items():
                some = self.rows(table, key, [block[i] for i in indices], below)
                for index, row in zip(indices, some, strict=True):
                    block_rows[index] = row
            rows += block_rows
        return rows

    def layout_keys(self, table: Table, positions: Sequence[int]) -> list[int]:
        """Check where tables lie and return what their layouts depend on."""
        data, read = self.data, _INT.unpack_from
        if max(positions) > self.size - _OFFSET_SIZE or any(map((3).__and__, positions)):
            for position in positions:
                if position % _OFFSET_SIZE or position + _OFFSET_SIZE > self.size:
                    raise self.malformed(
                        f"table {table.name} lies outside or is misaligned", position
                    )
        # Fields of 8 bytes are aligned to 8, tables to 4, so one vtable serves two alignments.
        return [(p - read(data, p)[0]) * 2 + (p >> 2 & 1) for p in positions]

    def rows(self, table: Table, key: int, positions: list[int], below: _Level) -> Iterable[Row]:
        """Read tables of one layout, column by column."""
        layout = self.layouts.get((table.name, key))
        if layout is None:
            layout = self.new_layout(table, key >> 1, positions[0])
            self.layouts[table.name, key] = layout
        data, unpack = self.data, layout.unpack.unpack_from
        if max(positions) + layout.unpack.size > self.size:
            raise self.malformed(f"table {table.name} ends outside", max(positions))
        count = len(positions)
        columns = list(zip(*[unpack(data, p) for p in positions], strict=True))
        fields: list[Iterable[Any]] = [repeat(value, count) for value in layout.blank]
        for field_id, index in layout.scalars:
            fields[field_id] = columns[index]
        for index in layout.bools:
            if not _BOOLS.issuperset(columns[index]):
                at = next(i for i, value in enumerate(columns[index]) if value not in _BOOLS)
                raise self.malformed(f"a bool is {columns[index][at]}", positions[at])
        for field_id, index, start, field in layout.references:
            column = columns[index]
            if 0 in column:
                at = positions[column.index(0)] + start
                raise self.malformed("a reference to itself", at)
            targets = [p + start + offset for p, offset in zip(positions, column, strict=True)]
            fields[field_id] = self.contents(field, targets, below)
        return zip(*fields, strict=True)

    def contents(self, field: Field, targets: list[int], below: _Level) -> list[Any]:
        """Read what a field of several tables refers to."""
        if field.kind is Kind.STRING:
            texts = list(map(self.strings.__getitem__, targets))
            self.count_bytes(sum(map(len, texts)), targets[0])
            return texts
        if field.kind is Kind.SCALARS:
            memo = self.vectors.get(field.code)
            if memo is None:
                memo = self.vectors[field.code] = _Memo(self.vector_maker(field.code))
            vectors = list(map(memo.__getitem__, targets))
            count = sum(map(len, vectors))
            self.count_bytes(count * struct.calcsize(f"<{field.code}"), targets[0])
            if field.code != "B":
                self.count_items(count, targets[0])
            return vectors
        if field.kind is Kind.STRINGS:
            return [self.texts(target) for target in targets]
        positions, outs = below.setdefault(field.table, ([], []))
        lists: list[list[Row]] = []
        for target in targets:
            count = self.length(target, _OFFSET_SIZE)
            self.count_tables(count, target)
            rows: list[Row] = []
            lists.append(rows)
            if count:
                positions += self.offsets(target)
                outs.append((rows, count))
        if not positions:
            del below[field.table]
        return lists

    def texts(self, position: int) -> tuple[str, ...]:
        """Check and read the vector of strings at ``position``."""
        self.count_items(self.length(position, _OFFSET_SIZE), position)
        strings = tuple(map(self.strings.__getitem__, self.offsets(position)))
        self.count_bytes(sum(map(len, strings)), position)
        self.count_memory(_VECTOR_BYTES + len(strings) * _NUMBER_BYTES, position)
        return strings

    def root_position(self) -> int:
        """Check identifier and root offset."""
        if self.size < 2 * _OFFSET_SIZE:
            raise self.malformed(f"metadata of {self.size} bytes, at least 8 are needed", 0)
        magic = bytes(self.data[4:8])
        if magic != self.schema.identifier:
            raise self.malformed(f"file identifier {magic}, expected {self.schema.identifier}", 4)
        root = _UINT.unpack_from(self.data)[0]
        if root < 2 * _OFFSET_SIZE:
            raise self.malformed(f"root offset {root}, at least 8 is needed", 0)
        return root

    def new_layout(self, table: Table, vtable: int, position: int) -> _Layout:
        """Check a vtable and turn it into one ``struct`` format for the whole table."""
        if len(self.layouts) == self.limits.vtables:
            raise self.limit("vtables", self.limits.vtables, self.limits.vtables + 1, position)
        if vtable < 0 or vtable % 2 or vtable + _VTABLE_HEAD.size > self.size:
            raise self.malformed(f"vtable of {table.name} lies outside or is misaligned", position)
        vtable_size, table_size = _VTABLE_HEAD.unpack_from(self.data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size:
            raise self.malformed(f"vtable of {table.name} has size {vtable_size}", vtable)
        self.count_bytes(vtable_size, vtable)
        self.count_items(vtable_size // 2, vtable)  # they may overlap, and each entry is looked at
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
                    bools.append(index)
            else:
                code += "I"
                references.append((field_id, index, start, field))
        return _Layout(
            unpack=struct.Struct(f"{code}{table_size - end}x"),
            blank=tuple(
                [f.default if f.kind is Kind.SCALAR else _EMPTY[f.kind] for f in table.fields]
            ),
            scalars=tuple(scalars),
            bools=tuple(bools),
            references=tuple(references),
        )  # fmt: skip

    def new_string(self, position: int) -> str:
        """Check and decode the string at ``position``."""
        length = self.length(position, 1)
        end = position + _OFFSET_SIZE + length
        if end >= self.size or self.data[end]:
            raise self.malformed("a string has no terminating zero", position)
        # One character beyond the first planes makes a string of four bytes for each.
        self.count_memory(_STRING_BYTES + length, position)
        try:
            text = str(self.data[position + _OFFSET_SIZE : end], "utf-8")
        except UnicodeDecodeError:
            raise self.malformed("a string is not UTF-8", position) from None
        if len(text) != length:
            self.count_memory(3 * len(text), position)
        return text

    def vector_maker(self, code: str) -> Callable[[int], Any]:
        """Return what checks and unpacks the vector of scalars at a position."""
        width = struct.calcsize(f"<{code}")

        def make(position: int) -> Any:
            count = self.length(position, width)
            start = position + _OFFSET_SIZE
            if start % width:
                raise self.malformed("a vector's elements are misaligned", position)
            if code == "B":
                self.count_memory(_VECTOR_BYTES + count, position)
                return bytes(self.data[start : start + count])
            # Before it is unpacked: vectors may overlap.
            self.count_memory(_VECTOR_BYTES + count * _NUMBER_BYTES, position)
            return struct.unpack_from(f"<{count}{code}", self.data, start)

        return make

    def offsets(self, position: int) -> Iterable[int]:
        """Check the vector of references at ``position`` and return their targets."""
        count = self.length(position, _OFFSET_SIZE)
        self.count_bytes(count * _OFFSET_SIZE, position)
        start = position + _OFFSET_SIZE
        offsets = struct.unpack_from(f"<{count}I", self.data, start)
        if 0 in offsets:
            raise self.malformed("a reference to itself", start + _OFFSET_SIZE * offsets.index(0))
        return map(add, range(start, start + _OFFSET_SIZE * count, _OFFSET_SIZE), offsets)

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
        self.count_memory(count * _TABLE_BYTES, position)

    def count_items(self, count: int, position: int) -> None:
        """Spend the budget of numbers and strings in vectors, of vtables too.

        Shared ones count at each use.
        """
        self.items += count
        if self.items > self.limits.items:
            raise self.limit("items of vectors", self.limits.items, self.items, position)

    def count_memory(self, count: int, position: int) -> None:
        """Spend the budget of memory; what is shared counts once."""
        self.memory += count
        if self.memory > self.most_memory:
            raise self.limit("bytes of memory", self.most_memory, self.memory, position)

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
