"""Errors of signals' handlers, which pass through libraries as what they are.

A handler may raise anything, a ``Timeout`` of the script's own, say, and at any bytecode. Where
libraries work for long, that bytecode is in code which takes an ``Exception`` for an error of its
own: it would become another error, or be lost. While such work is under way, the handlers that
Python knows are exchanged for ones that note what they raise; whoever turns errors into others asks
first, and at the end what was noted and lost on the way is raised again.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  # built in, without a stub
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, cast

from emulator.held_signals import HELD, SIGNALS, is_of_script

_get: Callable[[int], Any] = cast("Any", _signal).getsignal
_set: Callable[[int, Any], Any] = cast("Any", _signal).signal


class HandlerErrors:
    """A context in which what signals' handlers raise is noted, and raised at its end if lost.

    What a script catches itself, in a function that it gave, is not lost. Contexts may be nested.
    Outside of the main thread, which alone runs handlers, there is nothing to note.

    Example:
        >>> def handle(*_):
        ...     raise ValueError("the handler")
        >>> before = signal.signal(signal.SIGTERM, handle)
        >>> def goes_on():
        ...     try:
        ...         signal.raise_signal(signal.SIGTERM)
        ...     except Exception:
        ...         pass  # as a library does that tries something
        >>> try:
        ...     with HandlerErrors():
        ...         goes_on()
        ... except ValueError as error:
        ...     print(error)
        the handler
        >>> _ = signal.signal(signal.SIGTERM, before)
    """

    __slots__ = ("_args", "_depth", "_exchanged", "noted")

    def __init__(self) -> None:
        self._depth = 0
        self._exchanged: dict[int, _Noting] = {}
        self.noted: BaseException | None = None
        self._args: tuple[Any, ...] = ()

    def __enter__(self) -> HandlerErrors:
        if threading.current_thread() is threading.main_thread():
            self._depth += 1
            if self._depth == 1:
                self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        try:
            self._put_back()
        finally:
            noted, args = self.noted, self._args
            self.noted, self._args = None, ()
        ends = error is not None and not isinstance(error, Exception)
        if noted is not None:
            noted.args = args  # some libraries add to the text of what passes through
        if noted is not None and noted is not error and not ends and not _caught_by_script(noted):
            raise noted

    def note(self, error: BaseException) -> None:
        """A handler raises.

        Args:
            error: What it raises.
        """
        if self.noted is None:
            self.noted, self._args = error, error.args

    def pass_on(self) -> None:
        """Raise what a handler has raised, if that has led here."""
        if self.noted is not None and threading.current_thread() is threading.main_thread():
            if _caught_by_script(self.noted):
                self.noted = None
            else:
                raise self.noted

    def _begin(self) -> None:
        self.noted = None
        try:
            for number in SIGNALS:
                handler = _get(number)
                # KeyboardInterrupt is not an Exception: no code takes it for an error.
                if (
                    callable(handler)
                    and handler is not signal.default_int_handler
                    and not HELD.is_noting(handler)
                ):
                    self._exchanged[number] = _Noting(handler, self)
                    _set(number, self._exchanged[number])
        except BaseException:
            self._depth = 0
            self._put_back()
            raise

    def _put_back(self) -> None:
        """Give all signals their handlers again, whatever those that are back already raise."""
        try:
            while self._exchanged:
                number, noting = next(iter(self._exchanged.items()))
                if _get(number) is noting:
                    _set(number, noting.handler)
                self._exchanged.pop(number, None)
        finally:
            if self._exchanged:
                self._put_back()


class _Noting:
    """A handler that notes what another one raises."""

    __slots__ = ("_errors", "handler")

    def __init__(self, handler: Callable[..., Any], errors: HandlerErrors) -> None:
        self.handler, self._errors = handler, errors

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        try:
            return self.handler(number, frame)
        except BaseException as error:
            self._errors.note(error)
            raise


HANDLER_ERRORS = HandlerErrors()
"""The handlers are those of the process, and so is what they raise."""


def raise_error_of_handler(error: BaseException) -> None:
    """Raise what a signal's handler has raised, if an error is that or comes of that.

    Who is about to turn an error into another one, or to go on without, calls this first.

    Args:
        error: What was caught.
    """
    HANDLER_ERRORS.pass_on()
    if threading.current_thread() is not threading.main_thread():
        return
    handlers = {code for number in SIGNALS if (code := _code_of(_get(number))) is not None}
    cause: BaseException | None = error
    while cause is not None and handlers:
        if any(entry.tb_frame.f_code in handlers for entry in _entries(cause.__traceback__)):
            raise cause
        cause = cause.__cause__


def _code_of(handler: Any) -> CodeType | None:
    """The code that a handler runs, if it is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if isinstance(handler, _Noting):
        return _code_of(handler.handler)
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", None)
    if function is None and callable(handler):
        function = type(handler).__call__
    return getattr(function, "__code__", None)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _caught_by_script(error: BaseException) -> bool:
    """Whether the script has caught an error: the first entry is of the last function reached."""
    trace = error.__traceback__
    if trace is None or not is_of_script(trace.tb_frame):
        return False
    return trace.tb_frame.f_lasti != trace.tb_lasti  # it went on behind the place
