"""The rows of a file, to be found by their table and changed by the names of their fields."""

from __future__ import annotations

from typing import Any

from pef_schema._generated.pef import ENUMS, SCHEMA
from pef_schema.tables import Field, Kind

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
