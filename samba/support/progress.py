"""Progress of long work, shown on a terminal or in a notebook; elsewhere nothing is shown."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol, TextIO

from pef_schema.printable import one_line

_EVERY = 0.1
"""Seconds between two looks of a count."""


class Line(Protocol):
    """One line on a terminal or in a notebook."""

    def show(self, text: str, done: int) -> None:
        """Say what is being done, and how much is done before it."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class PlainLine:
    """A line that is written over.

    Args:
        stream: The terminal.
        title: What it begins with.
        total: What is to be done.
    """

    def __init__(self, stream: TextIO, title: str, total: int) -> None:
        self._stream, self._title, self._total = stream, title, total
        self._width = 0

    def show(self, text: str, done: int) -> None:
        """Write the line again."""
        what = f"{self._title}: {text}" if text else self._title
        line = f"{what} ({done}/{self._total})"
        self._write(line)
        self._width = len(line)

    def close(self) -> None:
        """Write blanks over it."""
        self._write("")
        self._stream.write("\r")
        self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line.ljust(self._width)}")
        self._stream.flush()


class BarLine:
    """A bar of tqdm.

    Args:
        bar: Its class.
        stream: The terminal.
        title: What it begins with.
        total: What is to be done.
    """

    def __init__(self, bar: Any, stream: TextIO, title: str, total: int) -> None:
        self._title = title
        # No thread that looks after bars: nothing is left behind.
        quiet = type("Bar", (bar,), {"monitor_interval": 0})
        size = shutil.get_terminal_size()  # tqdm shows nothing where it finds 0 columns or rows
        self._bar = quiet(
            desc=title,
            total=total,
            file=stream,
            leave=False,
            ncols=size.columns,
            nrows=size.lines,
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}",
        )

    def show(self, text: str, done: int) -> None:
        """Move it on."""
        self._bar.set_description_str(f"{self._title}: {text}" if text else self._title, False)
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        """Take it away."""
        self._bar.close()


class NotebookLine:
    """A bar below a notebook's cell, which needs no widgets.

    Args:
        shown: IPython's module ``display``.
        title: What it begins with.
        total: What is to be done.
    """

    def __init__(self, shown: Any, title: str, total: int) -> None:
        self._html, self._title, self._total = shown.HTML, title, total
        self._handle = shown.display(shown.HTML(""), display_id=True)

    def show(self, text: str, done: int) -> None:
        """Replace it."""
        what = escape(f"{self._title}: {text}" if text else self._title)
        bar = f'<progress max="{self._total}" value="{done}"></progress>'
        self._handle.update(self._html(f"{bar} {what} ({done}/{self._total})"))

    def close(self) -> None:
        """Take it away."""
        self._handle.update(self._html(""))


def _notebook() -> Any:
    """IPython's module ``display`` in the kernel of a notebook, else None."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kernel = getattr(ask(), "kernel", None) if callable(ask) else None
    return None if kernel is None else importlib.import_module("IPython.display")


def _line(title: str, total: int) -> Line | None:
    """A line on the terminal or in the notebook; None if there is neither."""
    stream, title = sys.stderr, one_line(title)
    if stream is None or not stream.isatty():
        shown = _notebook()
        return None if shown is None else NotebookLine(shown, title, total)
    try:
        bar = importlib.import_module("tqdm").tqdm
    except ImportError:
        return PlainLine(stream, title, total)
    return BarLine(bar, stream, title, total)


class Stages:
    """Stages of a piece of work.

    Args:
        line: Where they are shown, None for nowhere.
        names: Their names, in order.

    Attributes:
        seconds: How long each stage took, in order.
    """

    def __init__(self, line: Line | None, names: Sequence[str]) -> None:
        self._line, self._names = line, tuple(names)
        self.seconds: dict[str, float] = {}
        self._now, self._since = "", 0.0

    def start(self, name: str) -> None:
        """Say that a stage begins."""
        self.end()
        self._now, self._since = name, time.perf_counter()
        if self._line is not None:
            self._line.show(name, self._names.index(name))

    def end(self) -> None:
        """Take down how long the last stage took."""
        if self._now:
            self.seconds[self._now] = time.perf_counter() - self._since
            self._now = ""


@contextmanager
def stages(title: str, *names: str) -> Iterator[Stages]:
    """Show the stages of a piece of work while it runs.

    Args:
        title: What is done.
        names: The stages, in order.

    Returns:
        To be told which stage begins.

    Example:
        >>> with stages("compile net", "tracing", "writing") as stage:
        ...     stage.start("tracing")
        ...     stage.start("writing")
    """
    line = _line(title, len(names))
    progress = Stages(line, names)
    try:
        yield progress
    finally:
        progress.end()
        if line is not None:
            line.close()


def counted(title: str, count: int) -> Iterable[int]:
    """Count, and show how far it is.

    Args:
        title: What is counted.
        count: Up to where.

    Returns:
        ``range(count)``, itself where nothing is shown: counting then costs nothing.

    Example:
        >>> list(counted("steps", 3))
        [0, 1, 2]
    """
    line = _line(title, count)
    return range(count) if line is None else _counting(line, count)


def _counting(line: Line, count: int) -> Iterator[int]:
    shown = 0.0
    try:
        for i in range(count):
            now = time.perf_counter()
            if now - shown >= _EVERY:
                shown = now
                line.show("", i)
            yield i
    finally:
        line.close()
