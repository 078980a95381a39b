"""What a plan is lowered for: one processor, several chips of the host, or another platform."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

from emulator.native.library import Library, native_library

__all__ = ["Target", "lowered_for", "native_kernels", "present_target", "target_of"]


class Target(Enum):
    """Where a plan runs."""

    PROCESSOR = "one processor"
    CHIPS = "several chips of the host, among which XLA divides the work"
    OTHER = "another platform"


_TARGET: ContextVar[Target] = ContextVar("target", default=Target.PROCESSOR)


def present_target() -> Target:
    """What is lowered for now: one processor unless :func:`lowered_for` says otherwise."""
    return _TARGET.get()


def target_of(platform: str, chips: int = 1) -> Target:
    """The target that chips are.

    Args:
        platform: As ``jax.Device`` names it.
        chips: How many run a plan.

    Example:
        >>> target_of("cpu").name, target_of("cpu", 2).name, target_of("cuda").name
        ('PROCESSOR', 'CHIPS', 'OTHER')
    """
    on_host = Target.PROCESSOR if chips == 1 else Target.CHIPS
    return on_host if platform == "cpu" else Target.OTHER


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


def native_kernels() -> Library | None:
    """The native kernels, for a plan that can call them.

    Returns:
        None where there are none, and for several chips and other platforms: XLA divides what it
        knows, not calls into libraries.
    """
    return native_library() if present_target() is Target.PROCESSOR else None
