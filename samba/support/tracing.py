"""Whether a model is being traced in this process."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from samba.errors import SessionInUse

NO_GRAPHAMP = "samba_no_graphamp"
"""Key that ``session.disable_graphamp()`` leaves on what is traced inside."""

active = False
"""Whether a model is being traced, for code that has no time to call :func:`is_tracing`."""

_again = False
_tracer = 0
"""The thread that traces; 0 if none does."""
_one_at_a_time = threading.RLock()
"""The thread that traces holds it: torch's exporter and its patches are there once a process."""


_told: WeakSet[Any] = WeakSet()


def register_told(owner: Any) -> None:
    """Register an object whose attributes, and dicts among them, hold what scripts have told it.

    Args:
        owner: The object; it is not kept alive.
    """
    _told.add(owner)


def told_tables() -> list[dict[Any, Any]]:
    """The dicts that hold what scripts have told: a call of ``forward`` is not to change them."""
    own = [vars(owner) for owner in _told]
    return [*own, *(value for each in own for value in each.values() if isinstance(value, dict))]


def is_tracing() -> bool:
    """Whether a model is being traced now."""
    return active


def set_tracing(wanted: bool) -> None:
    """Say whether a model is being traced; old scripts set it through ``session.tracing``."""
    global active
    active = bool(wanted)


def declared_tracing() -> bool:
    """Whether a script has set ``session.tracing``, and no model is being traced."""
    return active and not _tracer


def refuse_while_tracing(operation: str) -> None:
    """Raise in the thread that traces a model: its tensors have no values meanwhile.

    Args:
        operation: What was asked of the session.

    Raises:
        SessionInUse: There. Other threads go on.
    """
    if _tracer == threading.get_ident():
        raise SessionInUse(
            operation=operation,
            problem="it is called while a model is being traced, by forward() or by a signal "
            "handler. Call it before or after session.compile and trace_graph.",
        )


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
    global _tracer
    with one_trace():
        before, tracer = is_tracing(), _tracer
        try:
            _tracer = threading.get_ident()
            set_tracing(True)
            yield
        finally:
            set_tracing(before)
            _tracer = tracer


@contextmanager
def one_trace() -> Iterator[None]:
    """No other thread traces a model meanwhile; it waits."""
    _watch_forks()
    with _one_at_a_time:
        yield


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    """End, in a forked child, the tracing of threads that do not exist there."""
    global _one_at_a_time, _tracer, _again
    if _tracer != threading.get_ident():
        _one_at_a_time = threading.RLock()
        _tracer, _again = 0, False
        set_tracing(False)
