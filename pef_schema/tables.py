"""Descriptions of FlatBuffers tables; the generated ``_generated/pef.py`` is made of these."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """Kind of the contents of a field."""

    SCALAR = "scalar"
    STRING = "string"
    SCALARS = "vector of scalars"
    STRINGS = "vector of strings"
    TABLES = "vector of tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a table; its id is its position in ``Table.fields``.

    Args:
        name: Name in the schema.
        kind: What it holds.
        code: ``struct`` code of a scalar or of a vector's scalars; ``?`` is one byte, 0 or 1.
        table: Name of the element table of a vector of tables.
        default: Value of an absent scalar.
        required: Whether a string or vector must be there.
    """

    name: str
    kind: Kind
    code: str = ""
    table: str = ""
    default: int | float = 0
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: its name and its fields in the order of their ids."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All tables by name, the name of the root table, and the 4-byte file identifier."""

    tables: Mapping[str, Table]
    root: str
    identifier: bytes


Row = Any
"""A table's values in the order of its fields' ids.

A scalar is an ``int`` or ``float``, a string a ``str``, a vector of scalars a ``tuple``
(``bytes`` for bytes), a vector of strings a ``tuple[str, ...]``, a vector of tables a
sequence of rows. An absent string is ``""``, an absent vector empty.
"""
