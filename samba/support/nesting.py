"""Tensors in nested containers, as models take them: caches of layers, states of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from samba.errors import ArgumentError

Constant = bool | int | float | str
"""What an argument of ``forward`` by name may be beside tensors: it is part of the graph."""

_DEEPEST = 128
"""Containers around a leaf: each costs Python some of its stack, and no model takes as many."""


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of nested lists, tuples and dicts, with names for them.

    Args:
        key: Name of the whole; empty where it has none, and so have the leaves.
        value: A leaf, or leaves in containers.

    Raises:
        ArgumentError: If a container holds itself, or containers are nested too deeply.

    Example:
        >>> list(leaves("past", [(1, 2), {"k": 3}]))
        [('past_0_0', 1), ('past_0_1', 2), ('past_1_k', 3)]
    """
    yield from _leaves(key, value, ())


def _leaves(key: str, value: Any, around: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (tuple, list)):
        items = enumerate(value)
    else:
        yield key, value
        return
    itself = id(value) in around
    if itself or len(around) >= _DEEPEST:
        raise ArgumentError(
            where=f"input {key:.80}" if key else "inputs",
            found=f"a {type(value).__name__} that holds itself"
            if itself
            else f"containers nested more than {_DEEPEST} deep",
            wanted="tensors in lists, tuples or dicts",
        )
    for inner, item in list(items):
        yield from _leaves(f"{key}_{inner}" if key else "", item, (*around, id(value)))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments of a torch function with each of their leaves changed.

    Args:
        value: A leaf, or leaves in lists, tuples and dicts; subclasses of these are leaves.
        change: Gives what stands in the place of a leaf.

    Returns:
        New containers.

    Example:
        >>> mapped((1, [2, {"k": 3}]), str)
        ('1', ['2', {'k': '3'}])
    """
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    return change(value)


def flat(value: Any) -> Iterator[Any]:
    """The leaves of lists, tuples and dicts, subclasses included.

    Example:
        >>> list(flat(((1, [2]), {"k": 3})))
        [1, 2, 3]
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    else:
        yield value
