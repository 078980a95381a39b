"""A replica that trains from the last checkpoint on, and may be cut off.

    python -m tests.samba.distributed.workers.restart PEF FOLDER CUT

Rank 1 kills itself in step CUT; -1 lets it live.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import samba
from samba.distributed import job as jobs
from tests.samba.distributed.worlds import share_of, state_of, world

STEPS = 10
EVERY = 3


def main(pef: str, folder: Path, cut: int) -> None:
    job = jobs.start()
    assert job is not None
    scene = world("adamw").build()
    scene.pef = pef
    file, done = folder / "checkpoint.pt", 0
    if job.rank == 0 and file.exists():  # the others get what rank 0 has
        kept = torch.load(file, weights_only=True)
        scene.model.load_state_dict(kept["model"])
        scene.optimizer.load_state_dict(kept["optimizer"])
    if file.exists():
        done = torch.load(file, weights_only=True)["step"]
        print("going on after step", done)
    scene.trace()
    for step in range(done + 1, STEPS + 1):
        if step == cut and job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        samba.session.run(share_of(job, step), (), data_parallel=True)
        if step % EVERY == 0:
            if job.rank == 0:
                samba.session.to_cpu(scene.model, [scene.optimizer])
                state = {"model": scene.model.state_dict(), "step": step}
                torch.save(state | {"optimizer": scene.optimizer.state_dict()}, f"{file}.new")
                os.replace(f"{file}.new", file)
            dist.barrier()
    torch.save(state_of(scene), folder / f"end{job.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
