"""Lays out FlatBuffers as tightly as the encoding allows: the largest programs of a size of file.

The builder of FlatBuffers takes a minute for what these tests need, shares no two things that
overlap, and repeats what could be shared; none of that binds a file that is made to harm.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pef_schema._generated.pef import SCHEMA
from pef_schema.tables import Field, Kind
from tests.pef_schema.forge import seal

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Tables of one kind that lie one after the other.

    Args:
        at: Their positions.
        starts: Where each field lies in a table, with its ``struct`` code.
    """

    at: Places
    starts: dict[str, tuple[int, str]]


@dataclass(slots=True)
class Sheet:
    """A buffer in the making; whatever refers must be laid out before what it refers to."""

    size: int = 8
    parts: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    columns: list[tuple[Places, str, Any]] = field(default_factory=list[tuple[Places, str, Any]])

    def take(self, count: int, align: int = 4, after: int = 0) -> int:
        """Reserve bytes such that what is ``after`` their start lies on a multiple."""
        self.size += -(self.size + after) % align
        self.size += count
        return self.size - count

    def tables(self, name: str, fields: str, count: int = 1) -> Tables:
        """Lay out tables with some of their fields, widest first."""
        table = SCHEMA.tables[name]
        numbers = {f.name: i for i, f in enumerate(table.fields)}
        chosen = [table.fields[numbers[wanted]] for wanted in fields.split()]
        chosen.sort(key=lambda f: -_width(f))
        slots, starts, end = [0] * len(table.fields), {}, 4
        for f in chosen:
            end += -end % _width(f)
            slots[numbers[f.name]] = end
            starts[f.name] = (end, "I" if f.kind is not Kind.SCALAR else f.code.replace("?", "B"))
            end += _width(f)
        widest = max([4, *[_width(f) for f in chosen]])
        stride = end + -end % widest
        while slots and not slots[-1]:
            slots.pop()
        head = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), stride, *slots)
        vtable = self.take(len(head))
        self.parts.append((vtable, head))
        at = self.take(stride * count, widest) + stride * np.arange(count, dtype=np.int64)
        self.columns.append((at, "i", at - vtable))
        return Tables(at=at, starts=starts)

    def put(self, tables: Tables, name: str, values: Any) -> None:
        """Fill a scalar field of all tables with one number, or with a number each."""
        start, code = tables.starts[name]
        self.columns.append((tables.at + start, code, values))

    def link(self, tables: Tables, name: str, targets: Any) -> None:
        """Let a field of all tables refer to one place, or to a place each."""
        start, code = tables.starts[name]
        self.columns.append((tables.at + start, code, np.asarray(targets) - tables.at - start))

    def references(self, count: int) -> Places:
        """Lay out a vector of references; its first place is that of the vector itself."""
        at = self.take(4 + 4 * count)
        self.parts.append((at, struct.pack("<I", count)))
        return at + 4 * np.arange(count + 1, dtype=np.int64)

    def rows(
        self,
        parent: Tables,
        name: str,
        table: str,
        fields: str = "",
        count: int = 1,
        *,
        stem: str = "",
        **columns: Any,
    ) -> Tables:
        """Lay out a vector of tables in a field of its parent.

        Args:
            parent, name: The field that refers to them.
            table: Their kind.
            fields: Fields that are to be linked.
            count: How many.
            stem: What their names begin with; without it a name is one of ``fields``, or missing.
            columns: Numbers for further fields.
        """
        vector = self.children(parent, name, count)
        named = " name" if stem else ""
        tables = self.tables(table, " ".join([fields, *columns]) + named, count)
        self.point(vector, tables.at)
        for column, numbers in columns.items():
            self.put(tables, column, numbers)
        if stem:
            self.link(tables, "name", self.names(stem, count))
        return tables

    def point(self, vector: Places, targets: Any) -> None:
        """Let the references of a vector lead to places."""
        self.columns.append((vector[1:], "I", np.asarray(targets) - vector[1:]))

    def children(self, parent: Tables, name: str, count: int) -> Places:
        """Lay out a vector of references as a field of a table."""
        vector = self.references(count)
        self.link(parent, name, vector[0])
        return vector

    def string(self, text: str | bytes) -> int:
        """Lay out a string."""
        raw = text if isinstance(text, bytes) else text.encode()
        at = self.take(5 + len(raw))
        self.parts.append((at, struct.pack("<I", len(raw)) + raw))
        return at

    def names(self, stem: str, count: int) -> Places:
        """Lay out as many strings, all of one length and all different."""
        width = len(str(count))
        raw = "".join([f"{stem}{i:0{width}}" for i in range(count)]).encode()
        each = len(stem) + width
        stride = 4 + each + 1 + -(each + 1) % 4
        at = self.take(stride * count) + stride * np.arange(count, dtype=np.int64)
        self.columns.append((at, "I", each))
        letters = np.frombuffer(raw, np.uint8).reshape(count, each)
        for column in range(each):
            self.columns.append((at + 4 + column, "B", letters[:, column]))
        return at

    def vector(self, code: str, values: Any) -> int:
        """Lay out a vector of numbers."""
        raw = np.asarray(values, _CODES[code]).tobytes()
        at = self.take(4 + len(raw), max(4, struct.calcsize(f"<{code}")), after=4)
        self.parts.append((at, struct.pack("<I", len(raw) // struct.calcsize(f"<{code}")) + raw))
        return at

    def raw(self, data: bytes, align: int = 4) -> int:
        """Lay out bytes as they are."""
        at = self.take(len(data), align)
        self.parts.append((at, data))
        return at

    def pef(self, root: Tables) -> bytes:
        """Return the file."""
        data = np.zeros(self.size + -self.size % 8, np.uint8)
        data[:8] = np.frombuffer(struct.pack("<I4s", root.at[0], SCHEMA.identifier), np.uint8)
        for at, part in self.parts:
            data[at : at + len(part)] = np.frombuffer(part, np.uint8)
        for places, code, values in self.columns:
            width = struct.calcsize(f"<{code}")
            filled = np.broadcast_to(np.asarray(values).astype(_CODES[code]), places.shape)
            raw = np.ascontiguousarray(filled).view(np.uint8).reshape(len(places), width)
            for byte in range(width):
                data[places + byte] = raw[:, byte]
        return seal(data.tobytes())


_CODES = {"B": "<u1", "i": "<i4", "I": "<u4", "q": "<i8", "Q": "<u8", "d": "<f8"}


def _width(f: Field) -> int:
    return struct.calcsize(f"<{f.code}") if f.kind is Kind.SCALAR else 4
