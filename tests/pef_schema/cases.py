"""The table of broken files, which the modules fill that ``bad_cases.SOURCES`` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pef_schema import PefError, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A broken file.

    Args:
        make: Returns its bytes.
        error: The exact class it must raise.
        text: Part of the message.
    """

    make: Callable[[], bytes]
    error: type[PefError]
    text: str


CASES: dict[str, Case] = {}


def add_case(name: str, error: type[PefError], text: str, make: Callable[[], bytes]) -> None:
    """Add a case to the table; each name once."""
    if name in CASES:
        raise ValueError(f"two cases are called {name}")
    CASES[name] = Case(make=make, error=error, text=text)


def edit(program: Program, path: str, /, **changes: Any) -> Program:
    """Replace fields deep inside a program.

    Args:
        program: The program.
        path: Where, such as ``graphs.0.nodes.2``; empty for the program itself.
        changes: New values by field name.

    Returns:
        The changed program.
    """

    def descend(item: Any, steps: list[str]) -> Any:
        if not steps:
            return dataclasses.replace(item, **changes)
        field, index, *rest = steps
        items = list(getattr(item, field))
        items[int(index)] = descend(items[int(index)], rest)
        return dataclasses.replace(item, **{field: tuple(items)})

    return descend(program, path.split(".") if path else [])


def set_field(row: list[Any], index: int, value: Any) -> None:
    """Change one field of a row; a statement that fits into a lambda."""
    row[index] = value
