"""Attributes of classes and modules that are set on request, and taken away again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ABSENT = object()


class Patches:
    """Attributes that are set together.

    Args:
        wanted: Owners, names and values.

    Attributes:
        applied: Whether they are set.

    Example:
        >>> class Owner: ...
        >>> patches = Patches([(Owner, "name", "value")])
        >>> patches.apply()
        >>> Owner.name
        'value'
        >>> patches.undo()
        >>> hasattr(Owner, "name")
        False
    """

    def __init__(self, wanted: Sequence[tuple[Any, str, Any]]) -> None:
        self._wanted = tuple(wanted)
        self._before: list[Any] = []

    @property
    def applied(self) -> bool:
        return bool(self._before)

    def apply(self) -> None:
        """Set them, unless they are set."""
        if not self.applied:
            self._before = [vars(owner).get(name, _ABSENT) for owner, name, _ in self._wanted]
            for owner, name, value in self._wanted:
                setattr(owner, name, value)

    def undo(self) -> None:
        """Give the owners what they had; what somebody else has set meanwhile stays."""
        for (owner, name, value), before in zip(self._wanted, self._before, strict=False):
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._before = []
