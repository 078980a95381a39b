"""Changes of single fields by their types in the schema; what they mean does not count."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from emulator.op_facts.table import op_facts
from pef_schema._generated.pef import SCHEMA
from pef_schema.program import DType
from pef_schema.rows import ArgTag
from pef_schema.tables import Field, Kind
from tests.pef_schema.fuzz.seeds import ENUM_OF, Tree, members

RowMutation = Callable[[random.Random, Tree], None]
"""Changes one place of a tree."""

_RANGES = {
    "?": (0, 1),
    "B": (0, 2**8 - 1),
    "i": (-(2**31), 2**31 - 1),
    "q": (-(2**63), 2**63 - 1),
    "Q": (0, 2**64 - 1),
}
_INTEGERS = (
    *(0, 1, 2, 3, 7, 16, 17, 255, 1000, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32, 2**40),
    *(2**47, 2**48, 2**48 + 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1),
    *(-1, -2, -3, -17, -128, -(2**31), -(2**31) - 1, -(2**63)),
)
_FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-8, 1e30, 1e308, -1e308, 5e-324, 2.0**31, 2.0**63),
    *(float("inf"), float("-inf"), float("nan")),
)
_TEXTS = (
    "", " ", "a", "..", "/", "a/b", "a\\b", "\0", "a\nb", "\x1b[2J", "\x7f", "\x85", "\u202e",
    "\u2066x", "\ud7ff", "\ue000", "\ufffe", "\uffff", "\U0010ffff", "\U0001f600", "é" * 512,
    "é" * 513, "n" * 1024, "n" * 1025, "n" * 4097, "n" * 70_000, "{}",
    "%s", "$x", "lr", "sum", "mean", "none",
)  # fmt: skip
_BITS = struct.Struct("<q")


def number(rng: random.Random, code: str, old: float, peers: list[Any]) -> int | float:
    """Another number for a field: a neighbour, an extreme, or what stands in another row."""
    if code == "d":
        return rng.choice((*_FLOATS, *peers, old * 2, -old))
    low, high = _RANGES[code]
    kind = rng.randrange(4)
    if kind == 0:
        new = int(old) + rng.choice((-2, -1, 1, 2))
    elif kind == 1:
        new = rng.choice((low, high, *[n for n in _INTEGERS if low <= n <= high]))
    elif kind == 2 and peers:
        new = rng.choice(peers)
    else:
        new = rng.randrange(24)
    return max(low, min(high, int(new)))


def text(rng: random.Random, peers: list[str]) -> str:
    """Another text for a field: one that is seldom seen, or that of another row."""
    return rng.choice(peers) if peers and rng.random() < 0.4 else rng.choice(_TEXTS)


def change_scalar(rng: random.Random, tree: Tree) -> None:
    """Write another number."""
    found = _field(rng, tree, Kind.SCALAR)
    if found is None:
        return
    table, row, index, field, peers = found
    if (table, field.name) in ENUM_OF and rng.random() < 0.7:
        row[index] = rng.choice(members(table, field.name))
    else:
        row[index] = number(rng, field.code, row[index], peers)


def change_text(rng: random.Random, tree: Tree) -> None:
    """Write another text."""
    found = _field(rng, tree, Kind.STRING)
    if found is not None:
        _, row, index, _, peers = found
        row[index] = text(rng, peers)


def change_texts(rng: random.Random, tree: Tree) -> None:
    """Change a vector of texts."""
    found = _field(rng, tree, Kind.STRINGS)
    if found is not None:
        _, row, index, _, peers = found
        known = [inner for peer in peers for inner in peer]
        row[index] = _vector(rng, list(row[index]), lambda _: text(rng, known), peers)


def change_vector(rng: random.Random, tree: Tree) -> None:
    """Change a vector of numbers: drop, double, permute, lengthen, replace."""
    found = _field(rng, tree, Kind.SCALARS)
    if found is None:
        return
    _, row, index, field, peers = found
    if field.code == "B":
        changed = _vector(rng, list(row[index]), lambda _: rng.randrange(256), peers)
        row[index] = bytes(changed)
    else:
        row[index] = _vector(
            rng, list(row[index]), lambda old: number(rng, field.code, old, []), peers
        )


def change_rows(rng: random.Random, tree: Tree) -> None:
    """Drop, double, permute or move rows."""
    found = [parent for parent in tree.parents() if parent[0][parent[1]]]
    if not found:
        return
    row, index, field = rng.choice(found)
    rows = list(row[index])
    kind = rng.randrange(6)
    at = rng.randrange(len(rows))
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(rng.randrange(len(rows) + 1), _copy(rows[at]))
    elif kind == 2:
        rng.shuffle(rows)
    elif kind == 3:
        rows = []
    elif kind == 4:
        rows += [_copy(rows[at]) for _ in range(rng.choice((2, 9, 300)))]
    else:
        others = [p for p in tree.parents() if p[2].table == field.table and p[0] is not row]
        moved = rows.pop(at)
        if others:
            other, place, _ = rng.choice(others)
            other[place] = [*other[place], moved]
    row[index] = rows


def change_args(rng: random.Random, tree: Tree) -> None:
    """Change an argument of a node: its kind, its value, or how many there are."""
    found = [row for row in tree.of("Node") if row[1]]
    if not found:
        return
    node = rng.choice(found)
    tags, bits, texts = bytearray(node[1]), list(node[2]), list(node[3])
    if len(tags) != len(bits):
        return
    at = rng.randrange(len(tags))
    kind = rng.randrange(5)
    if kind == 0:
        tags[at] = rng.choice((*ArgTag, rng.randrange(256)))
    elif kind == 1:
        bits[at] = int(number(rng, "q", bits[at], bits))
    elif kind == 2:
        tags[at], bits[at] = token(rng, texts)
    elif kind == 3:
        tag, value = token(rng, texts)
        tags.insert(at, tag)
        bits.insert(at, value)
    else:
        del tags[at], bits[at]
    node[1:4] = [bytes(tags), tuple(bits), tuple(texts)]


def change_op(rng: random.Random, tree: Tree) -> None:
    """Let a node name another operation that exists."""
    found = tree.of("Node")
    if found:
        rng.choice(found)[0] = rng.choice(_OPS)


def token(rng: random.Random, texts: list[str]) -> tuple[int, int]:
    """A token of an argument of any kind; a new text is appended to ``texts``."""
    tag = rng.choice(list(ArgTag))
    if tag is ArgTag.REF:
        return tag, rng.randrange(16)
    if tag is ArgTag.DTYPE:
        return tag, int(rng.choice(list(DType)))
    if tag is ArgTag.BOOL:
        return tag, rng.randrange(2)
    if tag is ArgTag.INT:
        return tag, rng.choice([n for n in _INTEGERS if n < 2**63])
    if tag is ArgTag.FLOAT:
        return tag, _BITS.unpack(struct.pack("<d", rng.choice(_FLOATS)))[0]
    if tag is ArgTag.TEXT:
        texts.append(rng.choice(_TEXTS))
        return tag, len(texts) - 1
    return tag, rng.randrange(3) if tag is ArgTag.LIST else 0


def _field(
    rng: random.Random, tree: Tree, kind: Kind
) -> tuple[str, list[Any], int, Field, list[Any]] | None:
    """A field of a kind: its table, row and place, and what stands there in other rows.

    The table is drawn first: there are many more values than schedules.
    """
    rows: dict[str, list[list[Any]]] = {}
    for table, row in tree.places():
        if _FIELDS[table, kind]:
            rows.setdefault(table, []).append(row)
    if not rows:
        return None
    table = rng.choice(list(rows))
    row = rng.choice(rows[table])
    index, field = rng.choice(_FIELDS[table, kind])
    return table, row, index, field, [other[index] for other in rows[table][:40]]


_FIELDS = {
    (table.name, kind): [(i, f) for i, f in enumerate(table.fields) if f.kind is kind]
    for table in SCHEMA.tables.values()
    for kind in Kind
}
_OPS = sorted(op_facts())


def _vector(
    rng: random.Random, items: list[Any], new: Callable[[Any], Any], peers: list[Any]
) -> tuple[Any, ...]:
    kind = rng.randrange(8)
    at = rng.randrange(len(items)) if items else 0
    if kind == 0 and items:
        del items[at]
    elif kind == 1 and items:
        items.insert(at, items[at])
    elif kind == 2:
        rng.shuffle(items)
    elif kind == 3:
        items += [new(0) for _ in range(rng.choice((1, 2, 14, 17, 500)))]
    elif kind == 4 and peers:
        items = list(rng.choice(peers))
    elif kind == 5:
        items = []
    elif items:
        items[at] = new(items[at])
    else:
        items = [new(0)]
    return tuple(items)


def _copy(row: Any) -> Any:
    return [_copy(item) for item in row] if isinstance(row, list) else row


ROW_MUTATIONS: tuple[RowMutation, ...] = (
    change_scalar, change_text, change_texts, change_vector, change_rows, change_args, change_op,
)  # fmt: skip
"""All of them."""
