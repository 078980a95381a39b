"""Tensors in nested containers, as models take them: caches of layers, states of cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Constant", "leaves"]

Constant = bool | int | float | str
"""What an argument of ``forward`` by name may be beside tensors: it is part of the graph."""


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of nested lists, tuples and dicts, with names for them.

    Args:
        key: Name of the whole; empty where it has none, and so have the leaves.
        value: A leaf, or leaves in containers.

    Example:
        >>> list(leaves("past", [(1, 2), {"k": 3}]))
        [('past_0_0', 1), ('past_0_1', 2), ('past_1_k', 3)]
    """
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    else:
        yield key, value
        return
    for inner, item in items:
        yield from leaves(f"{key}_{inner}" if key else "", item)
