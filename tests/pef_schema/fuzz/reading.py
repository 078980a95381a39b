"""Reading one damaged file: it is read, or refused with a ``PefError``."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

from emulator.__main__ import main as emulator_main
from pef_schema import PefError, Program, decode, encode, read_pef
from tests.fuzz.outcome import Outcome, foreign, refused, terminal

SPARE = 256 * 2**20
"""Bytes that reading may take beside three times the file."""


def _file() -> Path:
    """A file of this process: it may be forked from one that has loaded this module."""
    return Path(tempfile.gettempdir()) / f"pef-fuzz-{os.getpid()}.pef"


def attempt(name: str, pef: bytes) -> Outcome:
    """Read a file, and print what an accepted one holds.

    Args:
        name: Name of the case.
        pef: The file.

    Returns:
        The outcome.
    """
    try:
        program = decode(pef)
    except PefError as error:
        if "not enough memory" in str(error):
            # It is told as it should be, but three times the file should have been enough.
            return Outcome(label="memory", find=True, text=str(error))
        return refused(error)
    except Exception as error:  # the harness is there to find any
        return foreign(error)
    number = int(name.partition(":")[2].partition("@")[0].partition("+")[0])
    try:
        if number % 4 == 0:
            again = encode(program)
            if encode(decode(again)) != again:
                return Outcome(label="other bytes when written again", find=True)
        if number % 8 == 0:
            shown = _from_disk(pef)
            if shown.find:
                return shown
    except Exception as error:
        return foreign(error)
    return Outcome(label="accepted", text=features(program))


def features(program: Program) -> str:
    """What kinds of things a program holds; two programs that differ in it are worth keeping."""
    kinds = {kind.name for section in program.sections for kind in section.kinds}
    roles = {region.role.name for region in program.regions}
    dtypes = {value.dtype.name for graph in program.graphs for value in graph.values}
    rules = {optimizer.kind.name for optimizer in program.optimizers}
    found = [sorted(names) for names in (kinds, roles, dtypes, rules)]
    return f"{found} {len(program.graphs)} {len(program.schedules)}"


def _from_disk(pef: bytes) -> Outcome:
    """Read the file from a disk, and print its listing in both forms."""
    path = _file()
    try:
        path.write_bytes(pef)
        read_pef(path)
        shown = "".join(listing(path, *options) for options in ((), ("--json",)))
    finally:
        path.unlink(missing_ok=True)
    return terminal("accepted", shown)


def listing(path: Path, *options: str) -> str:
    """What ``python -m emulator inspect`` prints of a file.

    Args:
        path: The file.
        options: Further arguments.

    Raises:
        RuntimeError: If the command says that it failed.
    """
    out, problems = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(problems):
        code = emulator_main(["inspect", str(path), *options])
    if code:
        raise RuntimeError(f"inspect ended with {code}: {problems.getvalue()}")
    return out.getvalue()
