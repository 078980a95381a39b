"""Text on its way to a terminal or a log: what would steer either is shown escaped.

Names in a PEF, a checkpoint or an archive are whatever its maker wrote. A terminal obeys some
characters (escape sequences, carriage returns) and lets others rearrange what is read (marks of the
writing direction); here they become what ``repr`` would show in their place. Errors of this project
and all its output go through this file; errors' attributes keep the names as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

__all__ = ["json_text", "one_line", "printable", "say", "say_text", "some_of"]

_T = TypeVar("_T")
_LINES = re.compile(r"[^\n\t]+")


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
