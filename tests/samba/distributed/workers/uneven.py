"""Replicas whose epochs have different numbers of batches.

    python -m tests.samba.distributed.workers.uneven PEF MODE WHAT

Rank 1 has three batches, the others have five. WHAT it does then: exit, barrier (a collective of
the script's own), to_rdu (one of the session), or epoch (the next epoch).
"""

from __future__ import annotations

import sys

import torch.distributed as dist

import samba
from samba.distributed import job as jobs
from tests.samba.distributed.worlds import BATCH, batch, part_of, world
from tests.samba.worlds import named

FEW, MANY = 3, 5


def main(pef: str, mode: str, what: str) -> None:
    job = jobs.start()
    assert job is not None
    scene = world("sgd").build()
    scene.pef = pef
    scene.trace(data_parallel_mode=mode)
    for epoch in range(2 if what == "epoch" else 1):
        for step in range(FEW if job.rank == 1 else MANY):
            mine = part_of(batch(BATCH * job.size, 10 * epoch + step), job.rank, job.size)
            samba.session.run(
                named(mine),
                scene.model.output_tensors,
                data_parallel=True,
                reduce_on_rdu=True,
                data_parallel_mode=mode,
            )
        samba.session.to_cpu(scene.model)
        if what == "barrier":
            dist.barrier()
        elif what == "to_rdu":
            samba.session.to_rdu(scene.model)
    print("trained", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
