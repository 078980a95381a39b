"""A replica that trains, and halts before one step until it is told to go on.

    python -m tests.samba.distributed.workers.paced FOLDER [SLOW_RANK SECONDS]

Before step HALT it makes the file ``halt{rank}`` and waits for the file ``go``; then the slow rank
waits some seconds more, or until there is a file ``late``. It trains and saves what ``train`` does
with ``sgd:inorder:1``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from samba.distributed import job as jobs
from tests.samba.distributed.worlds import compiled, share_of, state_of
from tests.samba.worlds import sharing_executables

STEPS = 4
HALT = 2
"""Steps count from 0 as in ``train``."""
_PATIENCE = 120


def wait_for(file: Path, seconds: float) -> None:
    """Until a file is there, but no longer than some seconds."""
    end = time.monotonic() + seconds
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.02)


def main(folder: Path, slow: int, seconds: float) -> None:
    job = jobs.start()
    assert job is not None
    scene = compiled(folder)
    scene.trace(data_parallel_mode="inorder")
    for step in range(STEPS):
        if step == HALT:
            (folder / f"halt{job.rank}").touch()
            wait_for(folder / "go", _PATIENCE)
            if job.rank == slow:
                wait_for(folder / "late", seconds)
        how = {"reduce_on_rdu": True, "data_parallel_mode": "inorder"}
        scene.run(share_of(job, step), data_parallel=True, **how)
    torch.save(state_of(scene), folder / f"sgd-inorder-1-torch-{job.size}-{job.rank}.pt")


if __name__ == "__main__":
    slow, seconds = sys.argv[2:] or ("-1", "0")
    with sharing_executables():
        main(Path(sys.argv[1]), int(slow), float(seconds))
