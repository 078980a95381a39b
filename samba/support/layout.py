"""Tables and paragraphs that keep to the width of a terminal, or to 80 columns in a pipe."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence

from pef_schema.printable import one_line

_LEAST, _USUAL, _MOST = 20, 80, 240
"""Columns."""
_ROOM = 28
"""Columns that the last cell of a row needs; with less it gets lines of its own."""
_INDENT = "      "


def terminal_width() -> int:
    """Columns to keep to: ``COLUMNS`` if that is set, the terminal's, or 80."""
    if not os.environ.get("COLUMNS", "").isdecimal() and not os.isatty(1):
        return _USUAL
    return min(max(shutil.get_terminal_size((_USUAL, 24)).columns, _LEAST), _MOST)


def bytes_text(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> bytes_text(0), bytes_text(1023), bytes_text(1536), bytes_text(64 * 2**20)
        ('0 B', '1023 B', '1.5 KiB', '64 MiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1023.5:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{count} B"
    digits = f"{size:.1f}" if size < 9.95 else f"{size:.0f}"
    return f"{digits.removesuffix('.0')} {unit}"


def count_text(count: float) -> str:
    """A number of operations or bytes for people, in thousands.

    Example:
        >>> count_text(0), count_text(999), count_text(15_680), count_text(2.5e9)
        ('0', '999', '15.7 k', '2.5 G')
    """
    for unit in ("", " k", " M", " G", " T", " P"):
        if count < 999.5 or unit == " P":
            return f"{count:.0f}" if not unit else f"{count:.3g}{unit}"
        count /= 1000
    return ""


def seconds_text(seconds: float) -> str:
    """A time for people.

    Example:
        >>> [seconds_text(s) for s in (0.0, 3.21e-5, 0.00123, 2.5, 83.4, 4000.0)]
        ['0 s', '32.1 us', '1.23 ms', '2.5 s', '83.4 s', '4000 s']
    """
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            shown = seconds * factor
            return f"{shown:.0f} {unit}" if shown >= 1000 else f"{shown:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us" if seconds else "0 s"


def created_line(what: str, path: str, *, size: str, seconds: float, then: str) -> str:
    """The line that tells a file that was made.

    Args:
        what: What it is.
        path: Where it lies.
        size: How much is in it.
        seconds: How long that took.
        then: What to do with it.

    Example:
        >>> created_line("report", "a.html", size="43 KiB", seconds=0.31, then="open it")
        'report a.html created: 43 KiB in 310 ms. Next: open it'
    """
    return f"{what} {path} created: {size} in {seconds_text(seconds)}. Next: {then}"


def some(count: int, singular: str, plural: str = "") -> str:
    """A number with its noun.

    Example:
        >>> some(1, "node"), some(1200, "node"), some(2, "loss", "losses")
        ('1 node', '1,200 nodes', '2 losses')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def paragraph(text: str, *, width: int, indent: str = "") -> str:
    """One line of text, broken where it is longer than the width.

    Args:
        text: The text; what would steer a terminal is escaped.
        width: Columns.
        indent: What every line but the first begins with.
    """
    shown = one_line(text)
    if len(shown) <= width:
        return shown
    return "\n".join(_wrapped(shown, width, "", indent))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, width: int, right: Sequence[int] = ()
) -> str:
    """Lay out rows in columns; the last cell of a row goes on below where it is long.

    Args:
        head: Names of the columns.
        rows: Cells, as many as there are names.
        width: Columns of the terminal.
        right: Columns whose cells are aligned on the right.

    Returns:
        Text without a line end at its end.

    Example:
        >>> print(table(("id", "ops"), [("0", "linear relu")], width=80, right=(0,)))
        id  ops
         0  linear relu
    """
    cells = [[one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head) - 1)]
    room = width - sum(widths) - 2 * len(widths)
    lines: list[str] = []
    for row in cells:
        before = "".join(
            (cell.rjust(size) if i in right else cell.ljust(size)) + "  "
            for i, (cell, size) in enumerate(zip(row, widths, strict=False))
        )
        last = row[-1]
        if len(last) <= room:
            lines.append((before + last).rstrip())
        elif room >= _ROOM:
            lines += _wrapped(last, width, before, " " * len(before))
        else:
            lines += _wrapped(before.rstrip(), width, "", _INDENT)
            lines += _wrapped(last, width, _INDENT, _INDENT)
    return "\n".join(lines)


def _wrapped(text: str, width: int, before: str, indent: str) -> list[str]:
    """Break text into lines: the first begins with ``before``, the others with the indent."""
    lines = textwrap.wrap(
        text, width, initial_indent=before, subsequent_indent=indent, break_on_hyphens=False
    )
    return [line.rstrip() for line in lines or [before]]
