"""What a plan is lowered for: one processor, several chips of the host, or another platform."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

__all__ = ["Target", "lowered_for", "present_target"]


class Target(Enum):
    """Where a plan runs."""

    PROCESSOR = "one processor"
    CHIPS = "several chips of the host, among which XLA divides the work"
    OTHER = "another platform"


_TARGET: ContextVar[Target] = ContextVar("target", default=Target.PROCESSOR)


def present_target() -> Target:
    """What is lowered for now: one processor unless :func:`lowered_for` says otherwise."""
    return _TARGET.get()


@contextmanager
def lowered_for(target: Target) -> Generator[None, None, None]:
    """While active, this thread lowers for a target.

    Args:
        target: The target.

    Example:
        >>> with lowered_for(Target.CHIPS):
        ...     print(present_target().name)
        CHIPS
    """
    before = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(before)
