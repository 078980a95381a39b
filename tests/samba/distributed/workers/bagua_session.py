"""A replica that trains a PEF by an algorithm, with ``samba.session``, and prints its weights.

python -m tests.samba.distributed.workers.bagua_session PEF ALGORITHM
"""

from __future__ import annotations

import sys

from samba.distributed import bagua, job as jobs
from tests.samba.distributed.worlds import share_of, world

STEPS = 4


def main(pef: str, name: str) -> None:
    job = jobs.start()
    assert job is not None
    scene = world("sgd").build()
    scene.pef = pef
    if job.rank:  # rank 0's values are to hold
        for tensor in [*scene.model.parameters(), *scene.model.buffers()]:
            tensor.data.add_(1.0)
    scene.trace()
    # Both ranks are of one host: hierarchical algorithms have one leader, as in one process.
    flat = {"hierarchical": False} if name.startswith("low") else {}
    bagua.with_session(bagua.Algorithm.init(name, **flat))
    for step in range(STEPS):
        scene.run(share_of(job, step), data_parallel=True)
    values = [x for p in scene.model.parameters() for x in p.sn_data.flatten().tolist()]
    print("weights", *(x.hex() for x in values))


if __name__ == "__main__":
    main(*sys.argv[1:])
