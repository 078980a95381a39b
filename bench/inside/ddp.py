"""One of several replicas that torch's DistributedDataParallel keeps together."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.inside import Contestant
from samba.distributed.environment import share_of_cores

_SECONDS = 600
"""How long a rank waits for the others."""


def join_ddp(contestant: Contestant, meeting: str) -> dict[str, Any]:
    """Meet the other replicas, and build the model.

    Args:
        contestant: The peer.
        meeting: Path of a file that is not there yet, at which they meet.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if hasattr(os, "sched_setaffinity"):
        cores = share_of_cores(sorted(os.sched_getaffinity(0)), rank, size)
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_SECONDS),
    )
    _ = contestant.step
    return {}


def ddp(contestant: Contestant, count: int) -> dict[str, Any]:
    """Go on training.

    Args:
        contestant: A replica.
        count: Steps.

    Returns:
        ``seconds`` of all steps, and the ``loss`` of the last one.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = contestant.batches(len(contestant.case.batches()))[rank::size]
    loss = 0.0
    dist.barrier()
    begin = time.perf_counter()
    for i in range(count):
        loss = contestant.step(batches[i % len(batches)])
    return {"seconds": time.perf_counter() - begin, "loss": loss}
