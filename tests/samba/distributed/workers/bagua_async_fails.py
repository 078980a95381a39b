"""A replica that averages asynchronously; rank 1 raises while rank 0 has much to train."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from samba.distributed import bagua
from tests.samba.distributed.bagua.ranks import model, sample, step

STEPS, FAILS_AT = 2000, 20


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = model()
    optim = torch.optim.SGD(net.parameters(), lr=0.01)
    bagua.with_bagua(net, [optim], bagua.AsyncModelAverageAlgorithm(sync_interval_ms=5))
    for number in range(STEPS):
        step(net, optim, sample(rank, number))
        time.sleep(0.01)
        if rank == 1 and number == FAILS_AT:
            raise ValueError("the data of rank 1 is broken")
    print("trained to the end")


if __name__ == "__main__":
    main()
