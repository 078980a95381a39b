"""Pages of the documentation, and parts of them, for tests that hold a page against the code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"

_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_CREATED = (
    (re.compile(r"(?<= created: )[\d.]+ [KM]?i?B"), "N"),
    (re.compile(r"(?m)(?<= in )[\d.]+ m?s\. Next: "), "T. Next: "),
)


Varying = Sequence[tuple[re.Pattern[str], str]]


def without_sizes(text: str, varies: Varying = ()) -> str:
    """Printed text without how large files became, how long that took, and what else varies."""
    for pattern, instead in (*varies, *_CREATED):
        text = pattern.sub(instead, text)
    return text


def examples_of(text: str) -> list[tuple[str, str]]:
    """Commands of a page with what it shows below each."""
    found: list[tuple[str, str]] = []
    for block in _CONSOLE.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def page(name: str, heading: str = "") -> str:
    """Text of a page, or of the part of it under a heading.

    Args:
        name: The page's file in ``docs/``.
        heading: A heading of the second level; empty for the whole page.

    Returns:
        The text, without the heading.
    """
    text = (DOCS / name).read_text(encoding="utf-8")
    if not heading:
        return text
    found: list[str] = []
    inside = fenced = False
    for line in text.splitlines(keepends=True):
        if line.startswith("```"):
            fenced = not fenced
        if line.startswith("## ") and not fenced:
            inside = line.removeprefix("## ").strip() == heading
        elif inside:
            found.append(line)
    assert found, f"{name} has no heading {heading!r}"
    return "".join(found)
