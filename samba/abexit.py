"""Exit handling for programs of several processes, in which one that fails must not linger."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Callable
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
        """Has the error with which :meth:`run_with_abexit` ends the process shown by a function.

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
            status = _status(error.code)
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
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        finally:
            os._exit(status)


def _status(code: Any) -> int:
    """Exit status for a ``SystemExit``; text is printed, as Python does."""
    if code is None or isinstance(code, int):
        return code or 0
    say_text(str(code), file=sys.stderr)
    return 1
