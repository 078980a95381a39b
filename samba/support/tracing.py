"""Whether a model is being traced in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["NO_GRAPHAMP", "is_tracing", "set_tracing", "tracing"]

NO_GRAPHAMP = "samba_no_graphamp"
"""Key that ``session.disable_graphamp()`` leaves on what is traced inside."""

_active = False


def is_tracing() -> bool:
    """Whether a model is being traced now."""
    return _active


def set_tracing(active: bool) -> None:
    """Say whether a model is being traced; old scripts set it through ``session.tracing``."""
    global _active
    _active = bool(active)


@contextmanager
def tracing() -> Iterator[None]:
    """:func:`is_tracing` is True inside, and afterwards what it was before."""
    before = is_tracing()
    set_tracing(True)
    try:
        yield
    finally:
        set_tracing(before)
