"""Parse a PEF, as an event of the profiler."""

from __future__ import annotations

from pathlib import Path

from pef_schema import read_pef
from pef_schema.program import Program
from samba.profiler import PROFILER

__all__ = ["parse_pef"]


def parse_pef(path: str) -> Program:
    """Parse a PEF.

    Args:
        path: Its path, relative to the working directory or absolute.

    Returns:
        The program in it.

    Raises:
        PefError: There is no such file, or it is not a whole PEF of a known version.
    """
    with PROFILER.event("SAMBA_SET_PEF"):
        return read_pef(Path(path).absolute())
