"""Ways to break a good program, which the modules of broken files share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pef_schema import PefInvalid, Program, SectionKind, Step
from tests.pef_schema.cases import add_case, edit
from tests.pef_schema.forge import encode_unchecked
from tests.pef_schema.samples import custom, moments, small

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
