"""JSON files by the letter: every object has each key once, and every number is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pef_schema.errors import quoted


class NotJson(ValueError):
    """A text is not valid JSON; the reader of the file raises its own error with the path."""


def parse_json(text: bytes) -> Any:
    """The value of a JSON text.

    Args:
        text: UTF-8.

    Raises:
        NotJson: If it is something else, has a key twice or a number that is none, or is nested
            without end.

    Example:
        >>> parse_json(b'{"a": [1]}')
        {'a': [1]}
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("its JSON is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error!s:.200}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))
        raise NotJson(f"an object of its JSON has the key {quoted(twice)} twice")
    return entries


def _no_constant(name: str) -> Any:
    raise NotJson(f"its JSON contains {name}, which JSON does not allow")
