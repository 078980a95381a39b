"""The algorithms with two real processes: what ranks in one process give, they give."""

from __future__ import annotations

import pytest
import torch

from samba.distributed import bagua
from tests.samba.distributed.bagua.ranks import on_ranks, train, train_async
from tests.samba.distributed.processes import all_well, run_replicas, worker


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_asynchronous_average_of_all():
    fine, failed = run_replicas(2, worker("bagua_async_fails"), seconds=60)
    assert failed.code == 1
    assert "the data of rank 1 is broken" in failed.err
    assert fine.code == 1, fine.out + fine.err
    assert "rank 1 is gone: an error ended it" in fine.err
    assert "trained to the end" not in fine.out


@pytest.mark.parametrize(
    "name",
    [
        "gradient_allreduce",
        "bytegrad",
        "qadam",
        "decentralized",
        "low_precision_decentralized",
        "async",
    ],
)
def test_two_processes(name):
    ended = run_replicas(2, worker("bagua_train"), name, seconds=120, env={"OMP_NUM_THREADS": "1"})
    all_well(ended)
    rows = [e.out.split() for e in ended]
    assert [r[0] for r in rows] == [name] * 2
    found = [torch.tensor([float.fromhex(x) for x in r[1:]]) for r in rows]

    def work(world):
        if name == "async":
            return train_async(world.rank)
        if name != "qadam":
            return train(world, bagua.Algorithm.init(name, hierarchical=False), 4)[-1]
        made = []

        class Late(bagua.QAdamAlgorithm):
            def __init__(self):
                pass

            def init_tensors(self, trained):
                super().__init__(trained.optimizers[0], hierarchical=False)
                return super().init_tensors(trained)

        def optimizer(parameters):
            made.append(bagua.QAdamOptimizer(parameters, lr=0.05, warmup_steps=2))
            return made[0]

        return train(world, Late(), 4, optimizer=optimizer)[-1]

    for a, b in zip(found, on_ranks(2, work), strict=True):
        assert a.equal(b)
