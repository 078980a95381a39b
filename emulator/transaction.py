"""Changes of device memory that are put back unless all of them succeed."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from emulator.held_signals import HELD

__all__ = ["Transaction"]


class _Memory(Protocol):
    """What can be put back."""

    def state(self) -> tuple[Any, ...]:
        """What it holds."""
        ...

    def put_back(self, state: tuple[Any, ...]) -> None:
        """Make it hold that again."""
        ...


class Transaction:
    """A context that puts memory back if an error, or the handler of a signal, leaves it early.

    Args:
        memory: Whose contents are changed.
    """

    __slots__ = ("_before", "_memory")

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._before: tuple[Any, ...] | None = None

    def __enter__(self) -> Transaction:
        self._before = self._memory.state()
        return self

    def commit(self) -> None:
        """The changes are complete: errors from here on leave them as they are."""
        self._before = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._before is not None:
            with HELD:
                self._memory.put_back(self._before)
