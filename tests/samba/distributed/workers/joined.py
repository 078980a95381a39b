"""A replica whose data ends before that of others, here and in torch's DDP, which it compares.

    python -m tests.samba.distributed.workers.joined FOLDER COUNTS COMBINATION ...

COUNTS are the batches of each rank, with commas; a COMBINATION is
OPTIMIZER:MODE:ON_DEVICE:BY_INITIAL_SIZE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import samba
from samba.distributed import job as jobs
from tests.samba.distributed.worlds import BATCH, batch, compiled, state_of
from tests.samba.worlds import Scene, named, sharing_executables


def ours(scene: Scene, rank: int, count: int, mode: str, on_device: bool, by_initial: bool) -> None:
    with samba.session.join(divide_by_initial_world_size=by_initial):
        for step in range(count):
            scene.run(
                named(batch(BATCH, 10 * rank + step)),
                data_parallel=True,
                reduce_on_rdu=on_device,
                data_parallel_mode=mode,
            )


def theirs(scene: Scene, rank: int, count: int, by_initial: bool) -> None:
    model = DistributedDataParallel(scene.host)
    with model.join(divide_by_initial_world_size=by_initial):
        for step in range(count):
            scene.host_optimizer.zero_grad()
            loss, _ = model(**batch(BATCH, 10 * rank + step))
            loss.backward()
            scene.host_optimizer.step()


def main(folder: Path, counts: list[int], combinations: list[str]) -> None:
    job = jobs.start()
    assert job is not None
    for combination in combinations:
        optimizer, mode, on_device, by_initial = combination.split(":")
        samba.session.reset()
        scene = compiled(folder, optimizer)
        scene.trace(data_parallel_mode=mode)
        count = counts[job.rank]
        ours(scene, job.rank, count, mode, on_device == "1", by_initial == "1")
        theirs(scene, job.rank, count, by_initial == "1")
        scene.assert_follows()
        name = combination.replace(":", "-")
        torch.save(state_of(scene), folder / f"{name}-{job.engine}-{job.rank}.pt")
    print("compared", flush=True)


if __name__ == "__main__":
    with sharing_executables():
        main(Path(sys.argv[1]), [int(n) for n in sys.argv[2].split(",")], sys.argv[3:])
