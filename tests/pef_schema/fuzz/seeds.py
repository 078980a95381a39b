"""The good files that the harness changes: small, compiled, and kept beside this module."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pef_schema import Program, decode
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
