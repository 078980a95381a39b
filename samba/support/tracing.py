"""Whether a model is being traced in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "NO_GRAPHAMP",
    "is_tracing",
    "is_tracing_again",
    "one_trace",
    "set_tracing",
    "tracing",
    "tracing_again",
]

NO_GRAPHAMP = "samba_no_graphamp"
"""Key that ``session.disable_graphamp()`` leaves on what is traced inside."""

_active = False
_again = False
_ONE_AT_A_TIME = threading.RLock()
"""Held by the thread that traces: torch's exporter and what is patched for it are the process's."""


def is_tracing() -> bool:
    """Whether a model is being traced now."""
    return _active


def set_tracing(active: bool) -> None:
    """Say whether a model is being traced; old scripts set it through ``session.tracing``."""
    global _active
    _active = bool(active)


def is_tracing_again() -> bool:
    """Whether ``forward`` runs once more, to see that it gives the graph that it gave before."""
    return _again


@contextmanager
def tracing_again() -> Iterator[None]:
    """:func:`is_tracing_again` is True inside: what ``forward`` registers, it has registered."""
    global _again
    before, _again = _again, True
    try:
        yield
    finally:
        _again = before


@contextmanager
def tracing() -> Iterator[None]:
    """:func:`is_tracing` is True inside, and afterwards what it was before.

    Another thread that is about to trace waits for the end.
    """
    with one_trace():
        before = is_tracing()
        set_tracing(True)
        try:
            yield
        finally:
            set_tracing(before)


@contextmanager
def one_trace() -> Iterator[None]:
    """No other thread traces a model meanwhile; it waits."""
    with _ONE_AT_A_TIME:
        yield
