"""A replica that opens everything that a job may open, and then waits to be looked at.

``python -m ... FOLDER [hosts]``; with ``hosts`` each takes itself to be on a host of its own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch.distributed as dist

from samba.distributed import job

_PATIENCE = 60


def main(folder: Path, *options: str) -> None:
    """Join the others, make groups, and tell by a file that all is open."""
    if "hosts" in options:
        from samba.distributed import addresses

        addresses.is_loopback = lambda address: False
        addresses.network_space = lambda: sys.argv[0] + str(time.monotonic())
    found = job.start()
    assert found is not None
    found.data.barrier()
    halves = found.control.split([[0, 1]], "both")
    assert halves is not None
    halves.barrier()
    if "hosts" not in options:
        dist.barrier(dist.new_group([0, 1]))  # a script's own
    (folder / f"rank{found.rank}").touch()
    end = time.monotonic() + _PATIENCE
    while not (folder / "seen").exists() and time.monotonic() < end:
        time.sleep(0.05)
    found.control.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
