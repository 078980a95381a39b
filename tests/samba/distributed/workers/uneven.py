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
from tests.samba.distributed.worlds import share_of, world

FEW, MANY = 3, 5


def main(pef: str, mode: str, what: str) -> None:
    job = jobs.start()
    assert job is not None
    scene = world("sgd").build()
    scene.pef = pef
    scene.trace(data_parallel_mode=mode)
    for epoch in range(2 if what == "epoch" else 1):
        for step in range(FEW if job.rank == 1 else MANY):
            how = {"reduce_on_rdu": True, "data_parallel_mode": mode}
            scene.run(share_of(job, 10 * epoch + step), data_parallel=True, **how)
        samba.session.to_cpu(scene.model)
        if what == "barrier":
            dist.barrier()
        elif what == "to_rdu":
            samba.session.to_rdu(scene.model)
    print("trained", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
