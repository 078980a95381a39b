"""The good files that the harness changes, kept beside this module, and their rows as a tree."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pef_schema import Program, decode
from pef_schema._generated.pef import ENUMS, SCHEMA
from pef_schema.tables import Field, Kind
from tests.pef_schema.forge import data_of, metadata_of, rows_of, thaw

FOLDER = Path(__file__).parent / "seeds"
GOLDEN = Path(__file__).parents[2] / "golden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A good file in the forms in which it is changed.

    Args:
        name: Name of the file.
        golden: Whether it is one of ``tests/golden``, which say more than the compiler ever writes.
        program: What it says.
        metadata: Its FlatBuffer.
        data: Its constants.
        rows: Its root row, tuples all the way down where nothing may be changed in place.
    """

    name: str
    golden: bool
    program: Program
    metadata: bytes
    data: bytes
    rows: list[Any]

    def thawed(self) -> list[Any]:
        """Its root row, to be changed."""
        return thaw(self.rows)


@functools.cache
def load_seeds() -> tuple[Seed, ...]:
    """All seeds, the compiled ones first, each in the order of their names.

    Example:
        >>> {"mlp", "conv", "lstm", "v2_custom"} <= {seed.name for seed in load_seeds()}
        True
    """
    found: list[Seed] = []
    for path in (*sorted(FOLDER.glob("*.pef")), *sorted(GOLDEN.glob("*.pef"))):
        pef = path.read_bytes()
        program = decode(pef)
        found.append(
            Seed(
                name=path.stem,
                golden=path.parent == GOLDEN,
                program=program,
                metadata=metadata_of(pef),
                data=data_of(pef),
                rows=rows_of(program),
            )
        )
    return tuple(found)


FIELD = {
    table.name: {field.name: i for i, field in enumerate(table.fields)}
    for table in SCHEMA.tables.values()
}
"""Place of each field in the rows of its table."""

ENUM_OF = {
    ("Region", "dtype"): "DType",
    ("Region", "role"): "Role",
    ("Value", "dtype"): "DType",
    ("Output", "grad"): "OutputGrad",
    ("Optimizer", "kind"): "OptimizerKind",
    ("Argin", "kind"): "ArginKind",
    ("Step", "kind"): "SectionKind",
}
"""Fields that hold a member of an enum."""

Place = tuple[str, list[Any]]
"""A table's name and one of its rows."""


class Tree:
    """A root row that can be changed.

    Args:
        root: The row; it and the rows below are changed in place.

    Example:
        >>> from tests.pef_schema.fuzz.seeds import load_seeds
        >>> tree = Tree(load_seeds()[0].thawed())
        >>> len(tree.of("Region")) == len(tree.get(tree.root, "Program", "regions"))
        True
    """

    def __init__(self, root: list[Any]) -> None:
        self.root = root

    def places(self) -> list[Place]:
        """Every row with its table, in the order of the schema; the root comes first."""
        found: list[Place] = [(SCHEMA.root, self.root)]
        for table, row in found:
            for index, field in _CHILDREN[table]:
                found += [(field.table, child) for child in row[index]]
        return found

    def of(self, table: str) -> list[list[Any]]:
        """All rows of one table."""
        return [row for name, row in self.places() if name == table]

    def parents(self) -> list[tuple[list[Any], int, Field]]:
        """Every field that holds rows: the row that it is in, its place there, the field."""
        return [(row, i, f) for table, row in self.places() for i, f in _CHILDREN[table]]

    @staticmethod
    def get(row: list[Any], table: str, field: str) -> Any:
        """A field of a row."""
        return row[FIELD[table][field]]

    @staticmethod
    def put(row: list[Any], table: str, field: str, value: Any) -> None:
        """Change a field of a row."""
        row[FIELD[table][field]] = value


_CHILDREN = {
    table.name: [(i, f) for i, f in enumerate(table.fields) if f.kind is Kind.TABLES]
    for table in SCHEMA.tables.values()
}


def members(table: str, field: str) -> list[int]:
    """The numbers that a field with an enum may hold."""
    return [n for n in ENUMS[ENUM_OF[table, field]].values() if n]
