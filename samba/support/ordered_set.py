"""A set that keeps the order of its members."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, MutableSet
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class OrderedSet(MutableSet[T]):
    """A set that iterates in the order of insertion.

    Members that hash by identity, such as parameters, are told apart by identity:
    ``in`` never compares their values.

    Args:
        items: First members.

    Example:
        >>> OrderedSet("banana")
        OrderedSet(['b', 'a', 'n'])
        >>> OrderedSet("banana") | {"x"}
        OrderedSet(['b', 'a', 'n', 'x'])
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._items)!r})"

    def add(self, value: T) -> None:
        """Append a member unless it is there already."""
        self._items[value] = None

    def discard(self, value: T) -> None:
        """Remove a member if it is there."""
        self._items.pop(value, None)

    def update(self, *others: Iterable[T]) -> None:
        """Append the members of other collections."""
        for other in others:
            self._items.update(dict.fromkeys(other))
