"""Turns on a loaded program: threads take them one after the other.

A thread that asks for the program while another one uses it waits. The same thread may ask in the
middle of its own call, from a signal handler or a callback: what reads or writes memory is done
then, because every step of a run is whole; a run within a run is refused, as it would take the
other's inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from emulator.start import refuse_in_child, watch_forks
from samba.errors import SessionInUse

T = TypeVar("T")


class Turns:
    """Which thread may use a loaded program.

    ``session.run`` does itself what :meth:`run` does, as a call costs too much there; it asks
    :meth:`refuse` where that would. All others use :meth:`held` and :meth:`run`.

    Attributes:
        lock: The thread that uses the program has it.
        thread: The thread in the middle of a run, 0 if there is none; written under the lock.
        closed: Whether the program may not be run any more.
    """

    __slots__ = ("__weakref__", "_is_child", "closed", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread = 0
        self.closed = self._is_child = False
        watch_forks(self)

    def forked(self) -> None:
        """Refuse every turn in a forked child; a thread that is not there may have the lock."""
        self.lock = threading.RLock()
        self.closed = self._is_child = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """The program is this thread's until the body ends; it may hold it already.

        Raises:
            ForkedProcess: In a forked child.
        """
        refuse_in_child("a call of samba.session")
        with self.lock:
            yield

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Call something while the program is this thread's, and no other run goes into it.

        Args:
            operation: What it does, for the error.
            call: What to call.

        Returns:
            What it returns.

        Raises:
            SessionInUse: In the middle of another run, or if another thread has closed the program.
            ForkedProcess: In a forked child.
        """
        with self.lock:
            if self.thread or self.closed:
                self.refuse(operation)
            # A signal's handler can raise where a call ends, so never beside these marks; a
            # debugger's trace function can, also in a `finally` that would take the mark back.
            try:
                self.thread = threading.get_ident()
                result = call()
                self.thread = 0
            except BaseException:
                self.thread = 0
                raise
            return result

    def refuse(self, operation: str) -> NoReturn:
        """Say why a run cannot begin.

        Args:
            operation: What it does.

        Raises:
            SessionInUse: In the middle of another run, or if another thread has closed the program.
            ForkedProcess: In a forked child.
        """
        refuse_in_child("a call of samba.session")
        if self.closed:
            raise SessionInUse(
                operation=operation,
                problem="another thread has loaded something else, or reset the session, while "
                "this one waited for its turn. Let the threads agree on when to load.",
            )
        raise SessionInUse(
            operation=operation,
            problem="it is called in the middle of another call of the session, by a signal "
            "handler or a callback. Set a flag there, and call it after session.run has returned.",
        )

    def refuse_inside(self, operation: str) -> None:
        """Refuse what cannot be done in the middle of a run of the same thread.

        Args:
            operation: What is about to be done.

        Raises:
            SessionInUse: In the middle of a run.
        """
        if self.thread == threading.get_ident():
            self.refuse(operation)

    def close(self, operation: str = "reset()") -> None:
        """Wait for the run under way, and refuse all later ones.

        Args:
            operation: Why, for the error.

        Raises:
            SessionInUse: In the middle of a run of the same thread.
        """
        if self._is_child:
            return
        self.refuse_inside(operation)
        with self.held():
            self.closed = True
