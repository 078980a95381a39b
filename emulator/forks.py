"""Processes that are forked while a device is open: they are told instead of waiting forever.

A forked child has jax's memory and none of its threads, so whatever it asks of jax never ends. What
may be asked for there is told of the fork, and refuses from then on; a process that opens no device
is not watched, and a child that asks for nothing never notices.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

from jax._src import xla_bridge  # which clients there are, without starting one
from jax._src.interpreters import mlir

from emulator.errors import ForkedProcess

__all__ = ["Forkable", "refuse_in_child", "watch_forks"]


class Forkable(Protocol):
    """What does not work in a forked child."""

    def forked(self) -> None:
        """Called in the child before anything else runs there: refuse from now on."""
        ...


class _Process:
    """What forks need to know of this process.

    Attributes:
        opened_in: The process that has opened a device: this one, or one that it was forked from;
            0 if none has.
        is_child: Whether it was forked from that one.
    """

    __slots__ = ("is_child", "opened_in")

    def __init__(self) -> None:
        self.opened_in, self.is_child = 0, False


_PROCESS = _Process()
_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(*items: Forkable) -> None:
    """Tell forked children of this process that they are some.

    Args:
        items: What to tell; none of them is kept alive.
    """
    if not _PROCESS.opened_in:
        _PROCESS.opened_in = os.getpid()
        os.register_at_fork(after_in_child=_in_child)
    for item in items:
        _watched.add(item)


def refuse_in_child(operation: str) -> None:
    """Raise in a process that was forked while a device was open.

    Args:
        operation: What was asked for.

    Raises:
        ForkedProcess: There.
    """
    if _PROCESS.is_child:
        raise ForkedProcess(operation=operation, parent=_PROCESS.opened_in)


def _in_child() -> None:
    _PROCESS.is_child = True
    items = list(_watched)
    clients: list[object] = list(xla_bridge.__dict__["_backends"].values())
    for thing in (*clients, mlir.global_thread_pool, *items):
        # It stays as it is: its end in the child would wait for the parent's threads, or crash.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    for item in items:
        item.forked()
