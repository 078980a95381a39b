"""Reads files under limits of memory and time, and prints what came of each.

Run by ``test_reading_costs.py`` in a process of its own, which may die of it. Arguments: pairs of
a file's path and ``path`` or ``bytes``, how it is read. Prints a JSON list per file: name, outcome,
seconds of CPU. The address space is limited to what the process has before, and three times the
file and 256 MiB; after twenty seconds of CPU it is given up.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from pef_schema import PefError, decode, read_pef

MIB = 2**20


def allow(more: int) -> None:
    """Limit the address space to what it is now, and so many bytes."""
    now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = now * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _late(number: int, frame: object) -> None:
    raise TimeoutError


def read(path: Path, how: str) -> str:
    """Read a file and say what came of it."""
    size = path.stat().st_size
    data = path.read_bytes() if how == "bytes" else b""
    allow(3 * size + 256 * MIB)
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, 20)
    try:
        if how == "bytes":
            decode(data)
        else:
            read_pef(path)
    except PefError as error:
        return f"{type(error).__name__}: {error.what}"[:300]
    except BaseException as error:
        return f"foreign: {error!r}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "read"


def main(arguments: list[str]) -> None:
    """Read every file."""
    for path, how in zip(arguments[::2], arguments[1::2], strict=True):
        start = time.process_time()
        outcome = read(Path(path), how)
        print(json.dumps([Path(path).name, outcome, time.process_time() - start]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
