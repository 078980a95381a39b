"""A stand-in for the module ``os`` that fails, or dies, at a chosen system call of the writer."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pef_schema import atomic

COUNTED = ("scandir", "open", "fstat", "write", "fsync", "replace", "close", "unlink")


class FaultyOs:
    """Counts system calls and disturbs one of them; everything else is the real module.

    Args:
        at: Number of the call to disturb, from 0; -1 for none.
        fault: An errno to raise, ``"short"`` for a write of half the bytes, ``"kill"`` to die
            before the call, ``"half"`` to die after half of a write.
    """

    def __init__(self, at: int = -1, fault: int | str = 0) -> None:
        self.at, self.fault = at, fault
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in COUNTED else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if number != self.at:
                return real(*args, **kwargs)
            if self.fault == "kill" or (self.fault == "half" and name != "write"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault in ("short", "half"):
                if name != "write":
                    return real(*args, **kwargs)
                done = real(args[0], args[1][: len(args[1]) // 2 or 1])
                if self.fault == "half":
                    os.kill(os.getpid(), signal.SIGKILL)
                return done
            if name == "close":
                # A failed close has closed the file all the same.
                real(*args, **kwargs)
            code = int(self.fault)
            raise OSError(code, os.strerror(code))

        return call


@contextmanager
def disturbed(at: int = -1, fault: int | str = 0) -> Iterator[FaultyOs]:
    """The writer goes by such a module; arguments as for :class:`FaultyOs`."""
    atomic.os = faulty = FaultyOs(at, fault)
    try:
        yield faulty
    finally:
        atomic.os = os


def deaths(
    prepare: Callable[[], None], write: Callable[[], object], fault: str, first: int = 0
) -> Iterator[tuple[int, bool]]:
    """Write in one child after the other, each of which dies at the next system call.

    Only for a process without threads.

    Args:
        prepare: Is called before each writing.
        write: Writes.
        fault: ``"kill"`` or ``"half"``.
        first: The call at which the first one dies.

    Yields:
        Number of the call, and whether the child died of it; the last one did not.
    """
    at, died = first, True
    while died:
        prepare()
        child = os.fork()
        if child == 0:
            with disturbed(at, fault):
                write()
            os._exit(0)
        died = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        yield at, died
        at += 1


ERRNOS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES)
