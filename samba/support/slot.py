"""The one thing of its kind that a process has."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Room for the one thing of its kind that this process has, or for none.

    The module that owns the thing has the slot; others ask that module.

    Attributes:
        value: The thing; None if there is none.

    Example:
        >>> slot: Slot[str] = Slot()
        >>> slot.value is None
        True
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: T | None = None
