"""How a program ends; one of several processes that fails must not linger."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from pef_schema.printable import say_text
from samba.support.given import callable_of

__all__ = ["SambaAtexit"]

_log = logging.getLogger("samba")


class SambaAtexit:
    """Exit handlers that run however a program ends, and a way to end it without the others.

    A process that fails while its peers wait for it may hang in an exit handler that waits for
    them, such as that of a communication library. So a function run with
    :meth:`run_with_abexit` that fails ends the process at once, after the handlers registered
    here and without those of :func:`atexit.register`.
    """

    _handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []  # noqa: RUF012  # of the process
    _hooked = False
    _watchers: list[Callable[[BaseException], None]] = []  # noqa: RUF012  # of the process
    _show: Callable[[BaseException], None] | None = None

    @classmethod
    def show_by(cls, show: Callable[[BaseException], None]) -> None:
        """Set the function that shows the error with which :meth:`run_with_abexit` ends.

        Args:
            show: Called with the error; without it, its traceback is printed.
        """
        cls._show = staticmethod(show)

    @classmethod
    def on_failure(cls, watcher: Callable[[BaseException], None]) -> None:
        """Registers a function that gets the error when :meth:`run_with_abexit` ends the process.

        Args:
            watcher: Called with the error, before the handlers run.
        """
        cls._watchers.append(watcher)

    @classmethod
    def register(cls, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Registers a handler; handlers run last first, once.

        Args:
            func: What to call, with ``args`` and ``kwargs``.

        Raises:
            ConversionError: It cannot be called.
        """
        callable_of(func, "session.atexit_register(func)")
        if not cls._hooked:
            atexit.register(cls.run_handlers)
            cls._hooked = True
        cls._handlers.append((func, args, kwargs))

    @classmethod
    def run_handlers(cls) -> None:
        """Runs the handlers and forgets them; one that fails is logged and the next one runs."""
        while cls._handlers:
            func, args, kwargs = cls._handlers.pop()
            try:
                func(*args, **kwargs)
            except Exception:
                _log.exception("exit handler %s failed", getattr(func, "__qualname__", func))

    @classmethod
    def run_with_abexit(cls, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Runs a function; if it fails, ends the process at once.

        If it returns, the process goes on and may end in the usual way. If it raises, the
        error is shown, the registered handlers run, and the process ends with status 1,
        or with that of a ``SystemExit``.

        Args:
            func: What to run, with ``args`` and ``kwargs``.

        Raises:
            ConversionError: It cannot be called; the process goes on then.
        """
        callable_of(func, "session.use_abexit(func)")
        try:
            func(*args, **kwargs)
        except SystemExit as error:
            if error.code is not None and not isinstance(error.code, int):
                say_text(str(error.code), file=sys.stderr)  # as Python does
            status = exit_code_of(error.code)
            if status:
                cls._tell(error)
            cls.end(status)
        except BaseException as error:
            if cls._show is None:
                traceback.print_exc()
            else:
                cls._show(error)
            cls._tell(error)
            cls.end(1)

    @classmethod
    def _tell(cls, error: BaseException) -> None:
        for watcher in cls._watchers:
            try:
                watcher(error)
            except Exception:
                _log.exception("a failure could not be reported")

    @classmethod
    def end(cls, status: int) -> NoReturn:
        """Ends the process at once, after the handlers registered here.

        Args:
            status: Its exit status.
        """
        try:
            cls.run_handlers()
        finally:
            end_now(status)


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
