"""Turns on a loaded program: threads take them one after the other.

A thread that asks for the program while another one uses it waits. The same thread may ask in the
middle of its own call, from a signal handler or a callback: what reads or writes memory is done
then, because every step of a run is whole; a run within a run is refused, as it would take the
other's inputs.

Most programs are run by one thread all their life, so taking a lock in each run would be for
nothing. The first thread that runs a program *owns* it, and only leaves a mark while it runs. The
first call of another thread ends that: it takes the ownership away, waits until the mark is gone,
and from then on everybody takes the lock.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from emulator.forks import refuse_in_child, watch_forks
from samba.errors import SessionInUse

__all__ = ["Turns"]

_LOOK_AGAIN = 1e-4
"""Seconds between two looks at the mark of the owner, once in the life of a program."""


class Turns:
    """Who may use a loaded program.

    ``session.run`` uses the attributes itself, as follows; all others use :meth:`held` and
    :meth:`running`. Whoever runs has the turns as a local variable ``in_turn``: the stack tells an
    exception that has left a mark from a run under way::

        in_turn = loaded.turns
        if get_ident() == in_turn.owner and not in_turn.marked:
            try:
                in_turn.marked = True
                if in_turn.owner:  # once more: who takes it away looks at the mark after that
                    return run()
            finally:
                in_turn.marked = False
        with in_turn.running("run()"):
            return run()

    Attributes:
        owner: The thread that need not take the lock to run; 0 if there is none.
        marked: Whether the owner runs; written by the owner alone.
    """

    __slots__ = ("__weakref__", "_busy", "_closed", "_forked", "_lock", "_marks", "marked", "owner")

    def __init__(self) -> None:
        self.owner = 0
        self.marked = self._busy = self._closed = self._forked = False
        self._marks = 0  # who is or was the owner
        self._lock = threading.RLock()
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child nobody takes a turn: a thread that is not there may have the lock."""
        self.owner, self._forked = 0, True

    @contextmanager
    def held(self) -> Iterator[None]:
        """The program is this thread's until the body ends; it may hold it already.

        Raises:
            ForkedProcess: In a forked child.
        """
        refuse_in_child("a call of samba.session")
        while True:
            self._take_away()
            with self._lock:
                if self.owner in (0, threading.get_ident()):  # else it got one meanwhile
                    yield
                    return

    def _take_away(self) -> None:
        """Let another thread run only with the lock from now on; waits for its run under way."""
        me = threading.get_ident()
        if self.owner not in (0, me):
            self.owner = 0
        while self.marked and self._marks != me and _uses(_stack(self._marks), self):
            time.sleep(_LOOK_AGAIN)

    @contextmanager
    def running(self, operation: str) -> Iterator[None]:
        """The program is this thread's until the body ends, and no other run goes into it.

        Args:
            operation: What the body does.

        Raises:
            SessionInUse: In the middle of another run, or if another thread has closed the program.
            ForkedProcess: In a forked child.
        """
        with self.held():
            if self._closed:
                raise SessionInUse(
                    operation=operation,
                    problem="another thread has loaded something else, or reset the session, while "
                    "this one waited for its turn. Let the threads agree on when to load.",
                )
            if self._is_marked and _uses(_stack(threading.get_ident()), self, 2):
                self._refuse(operation)
            me = threading.get_ident()
            if self._marks == me:
                self.marked = False
            if not self._marks and not self._busy:
                self._marks = self.owner = me
            try:
                self._busy = True
                yield
            finally:
                self._busy = False

    def refuse_inside(self, operation: str) -> None:
        """Refuse what cannot be done in the middle of a run of the same thread.

        Args:
            operation: What is about to be done.

        Raises:
            SessionInUse: In the middle of a run.
        """
        if self._is_marked and _uses(_stack(threading.get_ident()), self):
            self._refuse(operation)

    def close(self, operation: str = "reset()") -> None:
        """Let nobody run the program any more, as soon as nobody does.

        Args:
            operation: Why, for the error.

        Raises:
            SessionInUse: In the middle of a run of the same thread.
        """
        if self._forked:
            return
        self.refuse_inside(operation)
        with self.held():
            self.owner, self._closed = 0, True

    @property
    def _is_marked(self) -> bool:
        """Whether a run is under way, in this thread or another, unless an exception left that."""
        return self.marked or self._busy

    def _refuse(self, operation: str) -> None:
        raise SessionInUse(
            operation=operation,
            problem="it is called in the middle of another call of the session, by a signal "
            "handler or a callback. Set a flag there, and call it after session.run has returned.",
        )


def _stack(thread: int) -> FrameType | None:
    """The innermost frame of a thread; None if it has ended."""
    return sys._current_frames().get(thread)


def _uses(frame: FrameType | None, turns: Turns, times: int = 1) -> bool:
    """Whether so many calls on a stack are runs, or are about to be."""
    while frame is not None and times:
        times -= frame.f_locals.get("in_turn") is turns
        frame = frame.f_back
    return not times
