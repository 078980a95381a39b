"""What meeting the other replicas costs each of them: ``python -m bench.joining 2 4 8 16``.

For each count so many processes start under the project's launcher, join, and compare notes as
loading a PEF does. Prints for the slowest and largest of them: seconds of both, the messages that
it sends in an agreement, and the sockets, threads and resident memory that joining adds. Linux
only: it reads /proc.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.suites.memory import status_bytes
from emulator.replicas.comm.protocol import Communicator
from pef_schema.printable import say
from samba.distributed import job as jobs

WORKER = "--worker"
SECONDS = 300.0
"""Limit for one count."""
_AGREEMENTS = 20


def main(argv: Sequence[str]) -> int:
    """Measure each count; or, with ``--worker``, be one of the replicas.

    Args:
        argv: Counts.

    Returns:
        The exit code: 1 where replicas failed, 2 for what is not a count.
    """
    if list(argv) == [WORKER]:
        _worker()
        return 0
    if not argv or not all(a.isascii() and a.isdecimal() and int(a) > 1 for a in argv):
        say(
            f"bench.joining: found {' '.join(argv) or 'nothing'}, expected counts above 1, e.g. 2 4"
        )
        return 2
    for count in map(int, argv):
        done = subprocess.run(
            [sys.executable, "-m", "samba", "launch", "-n", str(count), __file__, WORKER],
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        if done.returncode:
            return 1
        lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
        rows = [json.loads(line) for line in lines]
        most = {name: max(row[name] for row in rows) for name in rows[0]}
        say(
            f"{count} replicas: join {most['join']:.2f} s, "
            f"agreement {most['agree'] * 1e3:.1f} ms and {most['messages']} messages, "
            f"{most['sockets']} sockets, "
            f"{most['threads']} threads, {most['resident'] / 2**20:.1f} MiB"
        )
    return 0


def _worker() -> None:
    before = _resources()
    begin = time.perf_counter()
    job = jobs.start()
    joined = time.perf_counter() - begin
    assert job is not None  # the launcher has set what it looks for
    after = _resources()
    job.together("bench", lambda control: control.barrier())
    messages = _count_messages(job.control)
    begin = time.perf_counter()
    for _ in range(_AGREEMENTS):
        job.agree("bench", {"PEF": "0" * 16, "engine": job.engine, "data_parallel_mode": "any"})
    agreed = (time.perf_counter() - begin) / _AGREEMENTS
    result = {name: after[name] - before[name] for name in after}
    result["messages"] = len(messages) // _AGREEMENTS
    sys.stdout.write(json.dumps({"join": joined, "agree": agreed, **result}) + "\n")


def _count_messages(control: Communicator) -> list[str]:
    """A list that grows by the collective's name with each message of an agreement."""
    sent: list[str] = []
    send, gather = control.exchange, control.gather_bytes

    def exchange(out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        sent.append("exchange")
        send(out, part, to, source)

    def gather_bytes(data: bytes) -> list[bytes]:
        sent.extend(["gather"] * (control.size - 1))
        return gather(data)

    control.exchange, control.gather_bytes = exchange, gather_bytes
    return sent


def _resources() -> dict[str, int]:
    """Sockets, threads and resident bytes of this process."""
    sockets = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            sockets += os.readlink(entry).startswith("socket:")
        except FileNotFoundError:
            continue  # that of the listing itself
    status = Path("/proc/self/status").read_text()
    return {
        "sockets": sockets,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "resident": status_bytes("VmRSS", status),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
