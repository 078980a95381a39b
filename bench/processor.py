"""Processor seconds of a process with all that it has started."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

__all__ = ["processor_seconds"]

_PROC = Path("/proc")


def processor_seconds() -> float:
    """User and system seconds of this process, of what it has started, and of what these started.

    ``torch.compile`` runs a C++ compiler in processes that its worker processes start.

    Returns:
        Seconds since this process began. Where there is no ``/proc``, a process that still runs is
        left out.

    Example:
        >>> processor_seconds() > 0
        True
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used) + sum(_running(os.getpid()))


def _running(root: int) -> Iterator[float]:
    """Seconds of each descendant that still runs, with those of its children that have ended."""
    stats = dict(_stats())
    tick = os.sysconf("SC_CLK_TCK")
    parents = {root}
    while parents:
        parents = {pid for pid, fields in stats.items() if int(fields[1]) in parents}
        for pid in parents:
            yield sum(map(int, stats[pid][11:15])) / tick


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The fields of each process behind its name: state, parent, …, see proc(5)."""
    for folder in _PROC.glob("[0-9]*") if _PROC.is_dir() else ():
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        yield int(folder.name), text.rpartition(")")[2].split()
