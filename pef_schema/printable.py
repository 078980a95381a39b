"""Text on its way to a terminal or a log: what would steer either is shown escaped.

Names in a PEF, a checkpoint or an archive are whatever its maker wrote. A terminal obeys some
characters (escape sequences, carriage returns) and lets others rearrange what is read (marks of the
writing direction); here they become what ``repr`` would show in their place. Errors of this project
and all its output go through this file; errors' attributes keep the names as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, TextIO, TypeVar

__all__ = ["json_text", "one_line", "printable", "say", "say_text", "some_of", "to_the_end"]

_T = TypeVar("_T")
_LINES = re.compile(r"[^\n\t]+")
_INTERRUPTED = 128 + signal.SIGINT
_NO_READER = 128 + signal.SIGPIPE


def printable(text: str) -> str:
    """Text with all that is not a visible character escaped, line ends and tabs aside.

    Escaped are control characters, marks without a width or of the writing direction, separators
    other than the blank, lone surrogates, and code points without a character. What is escaped
    already stays as it is.

    Args:
        text: Any text, of one line or several.

    Returns:
        Text that any UTF-8 terminal shows as it is read.

    Example:
        >>> printable("plain"), printable("a\\x1b[31mb\\r\\u202ec\\udc80")
        ('plain', 'a\\\\x1b[31mb\\\\r\\\\u202ec\\\\udc80')
    """
    if text.isprintable():
        return text
    return _LINES.sub(lambda match: one_line(match[0]), text)


def one_line(text: str) -> str:
    """As :func:`printable`, with line ends and tabs escaped too: a cell, or a line of a list.

    Args:
        text: Any text.

    Returns:
        Text of one line.

    Example:
        >>> one_line("a\\nerror: none")
        'a\\\\nerror: none'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def some_of(names: Sequence[_T], most: int | None = 4, text: Callable[[_T], str] = str) -> str:
    """The first of some names, and how many more there are.

    Args:
        names: The names.
        most: How many of them to write out; all if None.
        text: What is written of a name; only those that are written out are asked for it.

    Example:
        >>> some_of(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    more = 0 if most is None else max(0, len(names) - most)
    return ", ".join(map(text, names[:most])) + (f" and {more:,} more" if more else "")


def say(line: str = "", *, file: TextIO | None = None) -> None:
    """Print one line, whatever the names in it hold.

    Args:
        line: What to print.
        file: Where to; standard output if None.
    """
    print(one_line(line), file=sys.stdout if file is None else file)


def say_text(text: str, *, file: TextIO | None = None) -> None:
    """Print text of several lines, escaped where it has to be.

    Args:
        text: What to print; a line end follows.
        file: Where to; standard output if None.
    """
    print(printable(text), file=sys.stdout if file is None else file)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that is printable ASCII.

    Args:
        value: Plain data.
        indent: As for ``json.dumps``.

    Example:
        >>> json_text({"name": "a\\x7f\\x1b"})
        '{"name": "a\\\\u007f\\\\u001b"}'
    """
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def to_the_end(work: Callable[[], int], *, failed: int) -> int:
    """Run a command to its exit code, whatever becomes of its output.

    Args:
        work: Prints; returns the exit code.
        failed: The exit code if the output cannot be written, which one line says.

    Returns:
        The exit code: 130 after Ctrl-C, 141 where whoever reads the output has gone (``| head``).

    Raises:
        SystemExit: As argparse does, after wrong usage and after ``--help``.

    Example:
        >>> to_the_end(lambda: 0, failed=1)
        0
    """
    with _any_encoding(sys.stdout), _any_encoding(sys.stderr):
        try:
            try:
                return work()
            finally:  # here, where a failure can be told, and not at the process's end
                print(end="", flush=True)
        except BrokenPipeError:
            _drop_output()
            return _NO_READER
        except KeyboardInterrupt:
            return _INTERRUPTED
        except OSError as error:
            if error.filename is not None:
                raise  # of a file that the command opened, and not of its output
            _drop_output()
            reason = error.strerror or str(error)
            with contextlib.suppress(OSError):
                say_text(f"error: cannot write the output: {reason}", file=sys.stderr)
            return failed


def _drop_output() -> None:
    """Let what is still to be flushed when the process ends go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _any_encoding(stream: TextIO | None) -> Generator[None, None, None]:
    """Meanwhile, what the stream's encoding has no bytes for is written escaped."""
    before = getattr(stream, "errors", None)
    change = getattr(stream, "reconfigure", None)
    if change is None or before is None:
        yield
        return
    change(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            change(errors=before)
