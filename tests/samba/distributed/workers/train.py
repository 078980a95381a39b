"""A replica that trains every combination it is told, and saves where each ends.

python -m tests.samba.distributed.workers.train FOLDER STEPS OPTIMIZER:MODE:ON_DEVICE ...

In place of a mode there may be one of Bagua's algorithms, and then whether it is hierarchical.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import samba
from samba.distributed import bagua, job as jobs
from tests.samba.distributed.worlds import MODES, compiled, share_of, state_of
from tests.samba.worlds import sharing_executables


def main(folder: Path, steps: int, combinations: list[str]) -> None:
    job = jobs.start()
    assert job is not None
    for combination in combinations:
        optimizer, mode, on_device = combination.split(":")
        samba.session.reset()
        scene = compiled(folder, optimizer)
        if job.rank:  # rank 0's values are to hold
            for tensor in [*scene.model.parameters(), *scene.model.buffers()]:
                tensor.data.add_(1.0)
        algorithm = None
        if mode not in MODES:
            algorithm, mode = bagua.Algorithm.init(mode, hierarchical=on_device == "1"), MODES[0]
        scene.trace(data_parallel_mode=mode)
        if algorithm is not None:
            bagua.with_session(algorithm)
        for step in range(steps):
            scene.run(
                share_of(job, step),
                data_parallel=True,
                reduce_on_rdu=on_device == "1",
                data_parallel_mode=mode,
            )
        name = combination.replace(":", "-")
        torch.save(state_of(scene), folder / f"{name}-{job.engine}-{job.size}-{job.rank}.pt")


if __name__ == "__main__":
    with sharing_executables():
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
