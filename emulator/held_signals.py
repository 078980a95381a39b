"""Signals held back while device memory is between two states.

CPython runs the handlers of signals in the main thread, between any two bytecodes. A handler that
raises, as Ctrl-C does, or that saves and exits, must not find memory given away whose successor is
not stored yet. A repeated run has no bytecode there. What has some holds signals back: the handlers
that Python knows are exchanged for one that takes note, and run a moment later.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  # built in, without a stub
import inspect
import signal
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

# The C functions: those of `signal` are written in Python around them, and ten times as slow.
_get: Callable[[int], Any] = cast("Any", _signal).getsignal
_set: Callable[[int, Any], Any] = cast("Any", _signal).signal

_NEVER = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
"""Signals that cannot be handled, and those that tell of a fault where it is."""

SIGNALS = tuple(int(s) for s in signal.Signals if s.name not in _NEVER)
"""Numbers of the signals whose handlers may be exchanged."""

_ENDING = (int(signal.SIGINT), int(signal.SIGTERM))


_LIBRARIES = tuple(
    {sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")}
    | {str(Path(__file__).parents[1] / name) for name in ("emulator", "samba", "pef_schema")}
)


def is_of_script(frame: FrameType | None) -> bool:
    """Whether a frame is of code that is neither this project's nor an installed library's."""
    return frame is not None and not frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))


class HeldSignals:
    """A context in which no handler of a signal runs: those that came run at its end.

    Contexts may be nested; handlers then run at the end of the outermost. Outside of the main
    thread there is nothing to hold back. Handlers that are not Python's own are left alone: the
    system's default for SIGTERM ends the process at once. A handler that raises does so where the
    context ends, after everything in it is done.

    Example:
        >>> before = signal.signal(signal.SIGTERM, lambda *_: print("the handler"))
        >>> with HELD:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print("done first")
        done first
        the handler
        >>> _ = signal.signal(signal.SIGTERM, before)
    """

    __slots__ = ("_but_in_scripts", "_counts", "_depth", "_handlers", "_noted", "_noting")

    def __init__(self) -> None:
        self._depth = 0
        self._but_in_scripts = 0
        self._handlers: dict[int, Any] = {}
        self._noted: list[int] = []
        self._counts: Counter[int] = Counter()
        self._noting = self._note

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth == 0:
            self._begin()
        else:
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth > 1:
            self._depth -= 1
        else:
            self._end()

    def insisted(self) -> int:
        """The signal that came twice in this context and is to end the process, 0 if none did.

        Who waits here for somebody else asks this now and then, and gives up.
        """
        if not self._depth or threading.current_thread() is not threading.main_thread():
            return 0
        return next((number for number in _ENDING if self._counts[number] > 1), 0)

    @contextmanager
    def but_in_scripts(self) -> Generator[None]:
        """Hold signals back, except handlers that would run in a script's own code.

        A script's code can take what a handler raises there; libraries cannot, in which the same
        signal comes a moment later.
        """
        with self:
            self._but_in_scripts = self._but_in_scripts or self._depth
            try:
                yield
            finally:
                if self._but_in_scripts == self._depth:
                    self._but_in_scripts = 0

    def let_through(self) -> None:
        """Run the handlers of the signals that came, where the outermost context allows it.

        Whoever holds signals back for long calls this where an error leaves nothing half done.
        """
        if not self._noted or not self._but_in_scripts == self._depth > 0:
            return
        if threading.current_thread() is threading.main_thread():
            while self._noted:
                number = self._noted.pop(0)
                self._handlers[number](number, inspect.currentframe())

    def is_noting(self, handler: Any) -> bool:
        """Whether a handler is the one that stands for all others while signals are held.

        Args:
            handler: The handler.
        """
        return handler is self._noting

    def obeyed(self, number: int) -> None:
        """An error that stands for Ctrl-C is about to be raised: no other shall come at the end.

        Args:
            number: The signal that is obeyed; one with a handler of the script's own is kept, for
                the handler runs all the same.
        """
        if self._handlers.get(number) is signal.default_int_handler and number in self._noted:
            self._noted.remove(number)

    def _begin(self) -> None:
        self._counts.clear()
        try:
            self._depth = 1
            for number in SIGNALS:
                handler = _get(number)
                if callable(handler) and handler is not self._noting:
                    self._handlers[number] = handler  # first: it is called if that is all
                    _set(number, self._noting)
        except BaseException:  # a handler that was not exchanged yet has raised
            self._end()
            raise

    def _end(self) -> None:
        self._depth = 0  # from here on signals pass through, whoever is called for them
        try:
            self._put_back()
        finally:
            self._deliver()

    def _put_back(self) -> None:
        """Give all signals their handlers again, whatever those that are back already raise."""
        try:
            while self._handlers:
                for number in tuple(self._handlers):
                    # One that is back already may run here, hold signals itself, and put all back.
                    handler = self._handlers.get(number)
                    if handler is not None and _get(number) is self._noting:
                        _set(number, handler)
                    self._handlers.pop(number, None)
        finally:
            if self._handlers:
                self._put_back()

    def _deliver(self) -> None:
        """Have the handlers of the signals called that came, whatever the first of them raises."""
        try:
            while self._noted:
                signal.raise_signal(self._noted.pop(0))
        finally:
            if self._noted:
                self._deliver()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._depth:
            self._handlers[number](number, frame)
            return
        if self._but_in_scripts == self._depth and is_of_script(frame):
            self._handlers[number](number, frame)
            return
        self._counts[number] += 1
        if number not in self._noted:
            self._noted.append(number)


HELD = HeldSignals()
"""The handlers are those of the process, and so is what holds them back."""
