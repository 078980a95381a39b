"""A replica that trains with each Bagua algorithm in turn and prints its weights."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from samba.distributed import bagua
from tests.samba.distributed.bagua.ranks import (
    model,
    rounds_by_the_clock,
    sample,
    step,
    train_async,
    weights,
)


def to_the_end(rank: int) -> None:
    """Train one rank longer than the other, and abort by the end of the program alone."""
    net = model()
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    bagua.with_bagua(net, [optim], bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1))
    for number in range(5 + 20 * rank):
        step(net, optim, sample(rank, number))


def main(names: list[str]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in names:
        if name == "async":
            print(name, *(x.hex() for x in train_async(rank).tolist()))
            rounds_by_the_clock(rank)
            to_the_end(rank)
            continue
        net = model(rank)
        optim: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if name == "qadam":
            optim = bagua.QAdamOptimizer(net.parameters(), lr=0.05, warmup_steps=2)
            algorithm: bagua.Algorithm = bagua.QAdamAlgorithm(optim, hierarchical=False)
        else:
            algorithm = bagua.Algorithm.init(name, hierarchical=False)
        bagua.with_bagua(net, [optim], algorithm)
        for number in range(4):
            step(net, optim, sample(rank, number))
        print(name, *(x.hex() for x in weights(net).tolist()))


if __name__ == "__main__":
    main(sys.argv[1:])
