"""JSON that people can read too: what fits stands on one line."""

from __future__ import annotations

import textwrap
from typing import Any

from pef_schema.printable import json_text

__all__ = ["folded_json"]

_WIDTH = 100


def folded_json(value: Any, depth: int = 0) -> str:
    """JSON in which lists and objects take several lines only where they are long.

    Args:
        value: Plain data.
        depth: Blanks before it.

    Returns:
        Printable ASCII; what follows its first line is indented by the depth and more.

    Example:
        >>> print(folded_json({"name": "net", "texts": ["x" * 45, "y" * 45], "ids": [1, 2]}))
        {
         "name": "net",
         "texts": [
          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
          "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
         ],
         "ids": [1, 2]
        }
    """
    return _lines(value, depth, 0)


def _lines(value: Any, depth: int, before: int) -> str:
    if isinstance(value, dict) and value:
        text = json_text(value) if _is_small(value) else ""
        if text and depth + before + len(text) <= _WIDTH:
            return text
        items = [
            f"{json_text(str(key))}: " + _lines(item, depth + 1, len(json_text(str(key))) + 2)
            for key, item in value.items()
        ]
        return _broken("{", items, "}", depth)
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return _numbers(value, depth, before)
        text = json_text(value) if _is_small(value) else ""
        if text and depth + before + len(text) <= _WIDTH:
            return text
        return _broken("[", [_lines(item, depth + 1, 0) for item in value], "]", depth)
    return json_text(value)


def _is_small(value: Any) -> bool:
    """Whether it is worth writing out to see if it fits; a quick look at the first levels."""
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= _WIDTH // 3 and not any(
        isinstance(item, dict | list) and len(item) > _WIDTH // 3 for item in items
    )


def _broken(start: str, items: list[str], end: str, depth: int) -> str:
    inner = ",\n".join(" " * (depth + 1) + item for item in items)
    return f"{start}\n{inner}\n{' ' * depth}{end}"


def _numbers(value: list[int], depth: int, before: int) -> str:
    text = json_text(value)
    if depth + before + len(text) <= _WIDTH:
        return text
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=" " * (depth + before), subsequent_indent=" " * (depth + 1)
    )
    return "\n".join([lines[0][depth + before :], *lines[1:]])
