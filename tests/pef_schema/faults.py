"""A stand-in for the module ``os`` that fails, or dies, at a chosen system call of the writer."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

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


ERRNOS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES)
