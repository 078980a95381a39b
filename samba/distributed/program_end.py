"""How this program ends: by an error that nobody caught, or with a code given to ``sys.exit``."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

__all__ = ["end_now", "exit_code_of", "watch_end"]


def end_now(code: int) -> NoReturn:
    """End the process without Python's own end; what was printed so far is written.

    Args:
        code: Its exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def exit_code_of(status: object) -> int:
    """The code with which Python ends a process that exits with a status.

    Args:
        status: What was given to ``sys.exit``.

    Example:
        >>> exit_code_of(None), exit_code_of(5), exit_code_of(-1), exit_code_of("no such file")
        (0, 5, 255, 1)
    """
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def watch_end(fail: Callable[[BaseException], None], calls: Callable[[], int]) -> Callable[[], int]:
    """Take note of how the program ends, and with which code, which Python does not tell.

    Args:
        fail: Called with an error that nobody caught, after Python has shown it.
        calls: A count of what the program does; a program that goes on counting after
            ``sys.exit`` has caught it.

    Returns:
        What tells the code that the program has given to ``sys.exit``, 0 if none.
    """
    show, leave = sys.excepthook, sys.exit
    noted = 0, -1

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        fail(error)

    def exits(status: object = None, /) -> NoReturn:
        nonlocal noted
        if threading.current_thread() is threading.main_thread():
            noted = exit_code_of(status), calls()
        leave(status)  # pyright: ignore[reportArgumentType]  # whatever the program gave

    sys.excepthook = hook
    sys.exit = exits
    return lambda: noted[0] if noted[1] == calls() else 0
