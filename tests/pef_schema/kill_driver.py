"""Writes a PEF in children that are killed at every system call, and prints what they leave.

Run by ``test_atomic.py`` in a process of its own, because forking a process that has threads is
not safe. Arguments: the folder. Prints one line per death: call number, what the path holds
(``absent``, ``old``, ``new`` or ``partial``), number of temporaries left.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pef_schema import PefError, Program, atomic, encode, read_pef
from tests.pef_schema.faults import deaths
from tests.pef_schema.samples import constant

_CHUNK = 2**14
"""Bytes of a write here: where it ends is the point, not how long it is."""


def begin(path: Path, content: bytes) -> None:
    """Let a path hold what it begins with: nothing, or a file."""
    path.unlink(missing_ok=True)
    if content:
        path.write_bytes(content)


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
    # Of a size of which several writes are made.
    old, new = (constant(6 * _CHUNK, bytes([fill]) * 6 * _CHUNK) for fill in (1, 2))
    for start, content in (("absent", b""), ("old", encode(old))):
        for fault in ("kill", "half"):
            path = folder / f"{start}_{fault}.pef"
            prepare = partial(begin, path, content)
            write = partial(atomic.write_atomically, str(path), [encode(new)])
            for at, died in deaths(prepare, write, fault):
                left = len(list(folder.glob(".*.tmp")))
                print(start, fault, at, state(path, old, new), left if died else f"end {left}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
