"""The algorithms with two real processes: what ranks in one process give, they give."""

from __future__ import annotations

import pytest
import torch

from samba.distributed import bagua
from tests.processes import SECONDS
from tests.samba.distributed.bagua.ranks import NAMES, on_ranks, train, train_async
from tests.samba.distributed.processes import all_well, run_replicas, worker


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_asynchronous_average_of_all():
    fine, failed = run_replicas(2, worker("bagua_async_fails"), seconds=SECONDS)
    assert failed.code == 1
    assert "the data of rank 1 is broken" in failed.err
    assert fine.code == 1, fine.out + fine.err
    assert "rank 1 is gone: an error ended it" in fine.err
    assert "trained to the end" not in fine.out


def test_two_processes_train_with_each_algorithm_in_turn():
    ended = run_replicas(2, worker("bagua_train"), *NAMES, seconds=240)
    all_well(ended)
    rows = [[line.split() for line in e.out.splitlines()] for e in ended]
    weights = [{name: torch.tensor([*map(float.fromhex, row)]) for name, *row in r} for r in rows]
    assert [[*found] for found in weights] == [[*NAMES]] * 2
    for name in NAMES:
        for found, wanted in zip(weights, in_one_process(name), strict=True):
            assert found[name].equal(wanted), name


def in_one_process(name):
    """Weights of two ranks in one process that train with an algorithm."""

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

    return on_ranks(2, work)
