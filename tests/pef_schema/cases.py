"""The table of broken files, one for each rule of the reader, and ways to break a good program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pef_schema import PefError, PefInvalid, Program, SectionKind, Step
from tests.pef_schema.forge import encode_unchecked
from tests.pef_schema.samples import custom, moments, small


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


REDUCE = Step(kind=SectionKind.REDUCE, reads=(2,), writes=(2,))
"""A step that the sample could have."""


def meaning(name: str, text: str, change: Callable[[Program], Program]) -> None:
    """Add a case of the changed sample."""
    add_case(name, PefInvalid, text, lambda: encode_unchecked(change(small())))


def edited(case: str, text: str, path: str, /, **changes: Any) -> None:
    """Add a case of the sample with other fields at one place."""
    meaning(case, text, lambda program: edit(program, path, **changes))


def gradient(case: str, text: str, path: str, /, **changes: Any) -> None:
    """Add a case of the sample that has a custom gradient, with other fields at one place."""
    add_case(case, PefInvalid, text, lambda: encode_unchecked(edit(custom(), path, **changes)))


def optimizer(case: str, text: str, path: str, /, **changes: Any) -> None:
    """Add a case of the sample under NAdam, with other fields at one place."""
    add_case(case, PefInvalid, text, lambda: encode_unchecked(edit(moments(), path, **changes)))
