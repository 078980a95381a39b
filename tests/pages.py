"""Pages of the documentation, and parts of them, for tests that hold a page against the code."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


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
