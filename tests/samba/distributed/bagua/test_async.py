"""The asynchronous model average: rounds that the test drives, and rounds by the clock."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from emulator.replicas.comm import DataParallelError
from samba.distributed import bagua
from samba.errors import ArgumentError
from tests.samba.distributed.bagua.ranks import (
    NEVER,
    descend,
    finish_round,
    gradient,
    loss_of,
    model,
    on_ranks,
    put,
    rounds_by_the_clock,
    sample,
    start_round,
    step,
    train,
    train_async,
    weights,
)

LR = 0.1


@pytest.mark.parametrize("size", [2, 3])
def test_against_the_reference(size):
    """Rounds between steps: each rank goes on from the mean."""

    nets = [model(0) for _ in range(size)]
    for number in range(6):
        for rank, net in enumerate(nets):
            descend(net, gradient(net, sample(rank, number)))
        if number in (1, 2, 4):
            mean = torch.stack([weights(net) for net in nets]).mean(0)
            nets = [put(net, mean) for net in nets]
    results = on_ranks(size, lambda world: train_async(world.rank))
    for found, net in zip(results, nets, strict=True):
        assert found.equal(weights(net))
    assert not results[0].equal(results[1])  # the last step was each rank's own


def test_op_keeps_what_changed_meanwhile():
    """``w += S/n - s`` where ``w`` changed after ``s`` was taken."""
    changed = threading.Barrier(2)

    def work(world):
        t = bagua.ensure_bagua_tensor(torch.full((4,), float(world.rank)), "t", "m")
        bucket = bagua.BaguaBucket([t], "b")
        op = bucket.append_asynchronous_model_average_op()
        comm = bucket.backend.hierarchy.whole
        reduce = comm.all_reduce

        def slow(buffer, how):
            if buffer.dtype.kind == "f":
                op.lock_weight()  # it is free while ranks communicate
                t.add_(10 * (world.rank + 1))
                op.unlock_weight()
                changed.wait(20)
            reduce(buffer, how)

        comm.all_reduce = slow
        bucket.run_ops()
        return t.tolist()

    assert on_ranks(2, work) == [[10.5] * 4, [20.5] * 4]


def test_weights_hold_still_from_forward_to_the_end_of_backward():
    def work(world):
        net = model()
        optim = torch.optim.SGD(net.parameters(), lr=LR)
        algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=NEVER)
        bagua.with_bagua(net, [optim], algorithm)
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(world.rank)
        loss = loss_of(net, sample(world.rank, 0))
        start_round(net)
        time.sleep(0.1)
        during = weights(net)
        loss.backward()
        finish_round(net)
        algorithm.abort()
        return during.unique().tolist(), weights(net).unique().tolist()

    assert on_ranks(2, work) == [([0.0], [0.5]), ([1.0], [0.5])]


def test_rounds_by_the_clock_and_again_after_an_abort():
    first, second = on_ranks(2, lambda world: rounds_by_the_clock(world.rank))
    assert first == second


def test_warm_up_is_gradient_allreduce():
    def work(world):
        algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1, warmup_steps=3)
        history = train(world, algorithm, 5)
        algorithm.abort()
        plain = train(world, bagua.GradientAllReduceAlgorithm(), 5)
        assert all(a.equal(b) for a, b in zip(history[:3], plain[:3], strict=True))
        assert not history[4].equal(plain[4])

    on_ranks(2, work)


@pytest.mark.parametrize("warmup", [0, 2])
def test_ranks_may_make_different_numbers_of_steps(warmup):
    """A rank that ends first is waited for by none, and waits for all."""

    def work(world):
        net = model()
        optim = torch.optim.SGD(net.parameters(), lr=LR)
        algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1, warmup_steps=warmup)
        bagua.with_bagua(net, [optim], algorithm)
        for number in range(warmup + 10 * world.rank):
            step(net, optim, sample(world.rank, number))
        algorithm.abort()
        algorithm.resume()
        step(net, optim, sample(world.rank, 100))
        algorithm.abort()
        return weights(net)

    assert all(w.isfinite().all() for w in on_ranks(3, work))


def test_a_rank_that_fails_is_named_in_the_next_step():
    def work(world):
        net = model()
        optim = torch.optim.SGD(net.parameters(), lr=LR)
        algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1)
        bagua.with_bagua(net, [optim], algorithm, "net")
        step(net, optim, sample(world.rank, 0))
        if world.rank == 1:
            raise KeyError("lost")
        with pytest.raises(DataParallelError, match=r"bucket 0 of net.*rank 1") as caught:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                step(net, optim, sample(0, 0))
        assert caught.value.ranks == (1,)
        with pytest.raises(DataParallelError) as again:  # it would train without averaging
            step(net, optim, sample(0, 0))
        assert again.value is caught.value

    with pytest.raises(KeyError, match="lost"):
        on_ranks(2, work)


def test_no_thread_is_left_behind():
    def work(world):
        net = model()
        optim = torch.optim.SGD(net.parameters(), lr=LR)
        bagua.with_bagua(net, [optim], bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1), "kept")
        step(net, optim, sample(world.rank, 0))
        bagua.with_bagua(net, [optim], bagua.GradientAllReduceAlgorithm())
        step(net, optim, sample(world.rank, 1))
        return weights(net)

    first, second = on_ranks(2, work)
    assert first.equal(second)
    assert not [t for t in threading.enumerate() if t.name == "bagua-async-kept"]


def test_arguments():
    for wrong in (
        {"peer_selection_mode": "one"},
        {"sync_interval_ms": -1},
        {"sync_interval_ms": "1"},
        {"warmup_steps": -1},
    ):
        with pytest.raises(ArgumentError, match="0 or more"):
            bagua.AsyncModelAverageAlgorithm(**wrong)
