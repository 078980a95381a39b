"""Writes a PEF in children that are killed at every system call, and prints what they leave.

Run by ``test_atomic.py`` in a process of its own, because forking a process that has threads is
not safe. Arguments: the folder. Prints one line per death: call number, what the path holds
(``absent``, ``old``, ``new`` or ``partial``), number of temporaries left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pef_schema import PefError, Program, Region, Role, atomic, decode, encode, read_pef
from pef_schema.program import DType
from tests.pef_schema.faults import FaultyOs

_CHUNK = 2**14
"""Bytes of a write here: where it ends is the point, not how long it is."""


def program(fill: int) -> Program:
    """Return a program of which several writes are made."""
    size = 6 * _CHUNK
    region = Region(name="c", shape=(size,), dtype=DType.UINT8, role=Role.CONSTANT, segment=0)
    return Program(
        name="big",
        mapping="section",
        inference=True,
        regions=(region,),
        symbols=(),
        graphs=(),
        optimizers=(),
        argins=(),
        sections=(),
        schedules=(),
        segments=(bytes([fill]) * size,),
    )  # fmt: skip


def die_at(path: Path, content: bytes, at: int, fault: str) -> bool:
    """Write in a child that dies at system call ``at``; return whether it died."""
    child = os.fork()
    if child == 0:
        atomic.os = FaultyOs(at, fault)
        atomic.write_atomically(str(path), [content])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def state(path: Path, old: Program, new: Program) -> str:
    """Say what the path holds."""
    if not path.exists():
        return "absent"
    try:
        found = read_pef(path)
    except PefError:
        return "partial"
    return "old" if found == old else "new" if found == new else "partial"


def main(folder: Path) -> None:
    """Try every system call, on a fresh path and over an old file."""
    atomic._CHUNK = _CHUNK
    old, new = program(1), program(2)
    old_bytes, new_bytes = encode(old), encode(new)
    assert decode(old_bytes) == old
    for start in ("absent", "old"):
        for fault in ("kill", "half"):
            at = 0
            died = True
            while died:
                path = folder / f"{start}_{fault}.pef"
                path.unlink(missing_ok=True)
                if start == "old":
                    path.write_bytes(old_bytes)
                died = die_at(path, new_bytes, at, fault)
                left = len(list(folder.glob(".*.tmp")))
                print(start, fault, at, state(path, old, new), left if died else f"end {left}")
                at += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
