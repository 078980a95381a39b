"""How every command of this room runs: errors in one form, exit codes, output that may go away.

Exit codes: 0 done, 1 the command's own finding or failure, 2 wrong usage, 3 a file is missing or
bad, 130 after Ctrl-C, 141 where whoever reads the output has gone (``| head -1``), as the shell
says of other programs.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TextIO

from emulator.command_output import flush, to_the_end
from pef_schema import PefError, PefUnwritable, Program, SambaError
from pef_schema.atomic import is_special, write_atomically
from pef_schema.errors import quoted
from pef_schema.printable import json_text, printable, say, say_text, some_of
from samba.support.layout import bytes_text, created_line

DONE, FAILED, WRONG_USAGE, BAD_FILE = 0, 1, 2, 3
_since: ContextVar[float] = ContextVar("since")
"""When the command began."""
_SHOWN = 8
"""Graphs that a message lists; the error's ``present`` holds all of them."""


class WrongUsage(SambaError):
    """Arguments that cannot be together, or that this file has nothing for."""


class UnknownPart(WrongUsage):
    """A PEF has no part of the name that was asked for.

    Args:
        pef: The PEF.
        found: The name.
        present: The names of its parts of this kind.
    """

    kind = "part"

    def __init__(self, *, pef: str, found: str, present: tuple[str, ...]) -> None:
        self.pef, self.found, self.present = pef, found, present
        near = difflib.get_close_matches(found, present, n=_SHOWN, cutoff=0.4)
        names = some_of(list(dict.fromkeys([*near, *present])), _SHOWN, quoted)
        super().__init__(
            f"{quoted(pef, 1024)}: it has no {self.kind} {quoted(found)}. "
            + (f"Its {self.kind}s are {names}." if present else f"It has no {self.kind}s at all.")
        )


class UnknownGraph(UnknownPart):
    """A PEF has no graph of the name that was asked for."""

    kind = "graph"


class UnknownSection(UnknownPart):
    """A PEF has no section of the name that was asked for."""

    kind = "section"


class OutputOverInput(WrongUsage):
    """The output would replace the file that the command reads.

    Args:
        path: Where to write.
        what: What lies there.
    """

    def __init__(self, *, path: str, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(
            f"{quoted(path, 1024)}: the output would replace {what}. Name another file."
        )


def run_command(work: Callable[[], int], *, failed: int = FAILED) -> int:
    """Run a command to its exit code, whatever becomes of its files and its output.

    Args:
        work: Parses arguments, reads, prints; returns the exit code. What it raises on purpose, as
            a :class:`SambaError`, is printed as ``error: …``.
        failed: The exit code of such errors other than wrong usage and bad files.

    Returns:
        The exit code.

    Raises:
        SystemExit: As argparse does, after wrong usage and after ``--help``.

    Example:
        >>> run_command(lambda: 0)
        0
    """
    _since.set(time.perf_counter())

    def worked() -> int:
        try:
            return work()
        except SambaError as error:
            flush()
            say_text(f"error: {error}", file=sys.stderr)
            return _code(error, failed)

    return to_the_end(worked, failed=failed)


def write_output(
    path: str,
    data: bytes,
    *,
    inputs: Mapping[str, str],
    what: str,
    then: str,
    told: TextIO | None = None,
) -> None:
    """Write a file as a whole, or not at all, and say so; ``-`` is standard output.

    A device or a pipe is written to; anything else is replaced.

    Args:
        path: Where to write.
        data: What.
        inputs: Paths that must not be written over, by what they are, e.g. ``the PEF``.
        what: What the file is.
        then: What to do with it.
        told: Where it is said; on standard output if None.

    Raises:
        OutputOverInput: If one of them is the same file.
        PefUnwritable: If it cannot be written; what was there is as it was.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    for read, other in inputs.items():
        with contextlib.suppress(OSError, ValueError):
            if os.path.samefile(path, other):
                raise OutputOverInput(path=path, what=read)
    special = is_special(path)
    write_atomically(path, [data])
    if special:
        return
    now = time.perf_counter()
    seconds, size = now - _since.get(now), bytes_text(len(data))
    say(created_line(what, path, size=size, seconds=seconds, then=then), file=told)


def write_text(path: str, text: str, *, pef: str, what: str, then: str) -> None:
    """Print text, or write it to a file; ``-`` is standard output.

    Args:
        path: Where to write.
        text: What; a line end follows.
        pef: The PEF that it is about, which must not be written over.
        what, then: As for :func:`write_output`.

    Raises:
        OutputOverInput: If that is the same file.
        PefUnwritable: If it cannot be written.
    """
    if path == "-":
        say_text(text)
    else:
        data = (printable(text) + "\n").encode()
        write_output(path, data, inputs={"the PEF": pef}, what=what, then=then)


def chosen_graph(program: Program, name: str | None, *, pef: str) -> int | None:
    """The index of the graph that was asked for by name; None if none was.

    Raises:
        UnknownGraph: If there is none of that name.
    """
    if name is None:
        return None
    names = tuple(graph.name for graph in program.graphs)
    if name not in names:
        raise UnknownGraph(pef=pef, found=name, present=names)
    return names.index(name)


def _code(error: SambaError, failed: int) -> int:
    if isinstance(error, WrongUsage):
        return WRONG_USAGE
    bad = isinstance(error, PefError) and not isinstance(error, PefUnwritable)
    return BAD_FILE if bad else failed


_WIDTH = 100


def folded_json(value: Any, depth: int = 0) -> str:
    """JSON in which lists and objects take several lines only where they are long.

    Args:
        value: Plain data.
        depth: Blanks before it.

    Returns:
        Printable ASCII; what follows its first line is indented by the depth and more.

    Example:
        >>> print(folded_json({"name": "net", "texts": ["x" * 45, "y" * 45], "ids": [1, 2]}))
        {
         "name": "net",
         "texts": [
          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
          "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
         ],
         "ids": [1, 2]
        }
    """
    return _lines(value, depth, 0)


def _lines(value: Any, depth: int, before: int) -> str:
    if isinstance(value, dict) and value:
        text = json_text(value) if _is_small(value) else ""
        if text and depth + before + len(text) <= _WIDTH:
            return text
        items = [
            f"{json_text(str(key))}: " + _lines(item, depth + 1, len(json_text(str(key))) + 2)
            for key, item in value.items()
        ]
        return _broken("{", items, "}", depth)
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return _numbers(value, depth, before)
        text = json_text(value) if _is_small(value) else ""
        if text and depth + before + len(text) <= _WIDTH:
            return text
        return _broken("[", [_lines(item, depth + 1, 0) for item in value], "]", depth)
    return json_text(value)


def _is_small(value: Any) -> bool:
    """Whether it is worth writing out to see if it fits; a quick look at the first levels."""
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= _WIDTH // 3 and not any(
        isinstance(item, dict | list) and len(item) > _WIDTH // 3 for item in items
    )


def _broken(start: str, items: list[str], end: str, depth: int) -> str:
    inner = ",\n".join(" " * (depth + 1) + item for item in items)
    return f"{start}\n{inner}\n{' ' * depth}{end}"


def _numbers(value: list[int], depth: int, before: int) -> str:
    text = json_text(value)
    if depth + before + len(text) <= _WIDTH:
        return text
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=" " * (depth + before), subsequent_indent=" " * (depth + 1)
    )
    return "\n".join([lines[0][depth + before :], *lines[1:]])
