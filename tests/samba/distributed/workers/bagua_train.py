"""A replica that trains with each Bagua algorithm in turn and prints its weights."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from samba.distributed import bagua
from tests.samba.distributed.bagua.ranks import (
    loss_of,
    model,
    rounds_by_the_clock,
    sample,
    train_async,
    weights,
)


def main(names: list[str]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in names:
        if name == "async":
            print(name, *(x.hex() for x in train_async(rank).tolist()))
            rounds_by_the_clock(rank)
            continue
        net = model(rank)
        optim: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if name == "qadam":
            optim = bagua.QAdamOptimizer(net.parameters(), lr=0.05, warmup_steps=2)
            algorithm: bagua.Algorithm = bagua.QAdamAlgorithm(optim, hierarchical=False)
        else:
            algorithm = bagua.Algorithm.init(name, hierarchical=False)
        bagua.with_bagua(net, [optim], algorithm)
        for step in range(4):
            optim.zero_grad()
            loss_of(net, sample(rank, step)).backward()
            optim.step()
        print(name, *(x.hex() for x in weights(net).tolist()))


if __name__ == "__main__":
    main(sys.argv[1:])
