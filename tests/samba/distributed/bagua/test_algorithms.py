"""The algorithms beyond gradient_allreduce, each against a reference in plain torch."""

from __future__ import annotations

import math

import pytest
import torch

from samba.distributed import bagua
from samba.distributed.bagua.operations import shift_one_peer
from samba.distributed.bagua.training import trained_model_of
from samba.errors import ArgumentError
from tests.api.covers import covers
from tests.samba.distributed.bagua.lossy import both_ways, lossy
from tests.samba.distributed.bagua.ranks import (
    descend,
    gradient,
    loss_of,
    model,
    on_ranks,
    put,
    sample,
    train,
    weights,
)

LR = 0.1


def padded(flat: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([flat, torch.zeros(-flat.numel() % size)])


# The order of gradients in a bucket: the last parameter first.
SIZES = [p.numel() for p in model().parameters()]


def reversed_parameters(flat: torch.Tensor) -> torch.Tensor:
    return torch.cat(flat.split(SIZES)[::-1])


def forward_parameters(flat: torch.Tensor) -> torch.Tensor:
    return torch.cat(flat[: sum(SIZES)].split(SIZES[::-1])[::-1])


def compressed_mean(parts: list[torch.Tensor]) -> torch.Tensor:
    whole = both_ways([padded(reversed_parameters(p), len(parts)) for p in parts])
    return forward_parameters(whole)


@pytest.mark.parametrize("size", [2, 3])
def test_bytegrad(size):
    results = on_ranks(
        size, lambda w: train(w, bagua.Algorithm.init("bytegrad"), 3)[-1], nodes=[range(size)]
    )
    assert all(r.equal(results[0]) for r in results)
    net = model(seed=0)
    for step in range(3):
        descend(net, compressed_mean([gradient(net, sample(r, step)) for r in range(size)]))
    assert results[0].equal(weights(net))


def test_bytegrad_shows_what_is_not_finite():
    def work(world):
        net = model()
        bagua.with_bagua(net, [], bagua.Algorithm.init("bytegrad"))
        x = sample(world.rank, 0)
        if world.rank == 1:
            x[0, 0] = torch.nan
        loss_of(net, x).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    for result in on_ranks(2, work, nodes=[[0, 1]]):
        assert result.isnan().any()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_qadam_warms_up_as_adam(decay):
    nets = [model(), model()]
    optimizers = [
        bagua.QAdamOptimizer(nets[0].parameters(), lr=0.01, warmup_steps=60, weight_decay=decay),
        torch.optim.Adam(nets[1].parameters(), lr=0.01, weight_decay=decay, foreach=False),
    ]
    for step in range(50):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net, sample(0, step)).backward()
            optimizer.step()
        assert weights(nets[0]).equal(weights(nets[1]))


def test_qadam():
    size, warm, b1, b2, decay = 2, 3, 0.9, 0.999, 0.01

    def work(world):
        made = []

        def optimizer(ps):
            made.append(bagua.QAdamOptimizer(ps, lr=0.05, warmup_steps=warm, weight_decay=decay))
            return made[0]

        net = model(world.rank)
        optim = optimizer(list(net.parameters()))
        bagua.with_bagua(net, [optim], bagua.QAdamAlgorithm(optim))
        for step in range(6):
            optim.zero_grad()
            loss_of(net, sample(world.rank, step)).backward()
            optim.step()
        return weights(net)

    results = on_ranks(size, work, nodes=[range(size)])
    assert all(r.equal(results[0]) for r in results)
    net = model(0)
    m = v = torch.zeros_like(weights(net))
    for t in range(1, 7):
        w = weights(net)
        grads = [gradient(net, sample(r, t - 1)) for r in range(size)]
        if t <= warm:
            g = (sum(grads) / size).add(w, alpha=decay)
            m, v = torch.lerp(m, g, 1 - b1), (b2 * v).addcmul(g, g, value=1 - b2)
        else:
            decayed = [g.add(w, alpha=decay) for g in grads]
            m = compressed_mean([torch.lerp(m, g, 1 - b1) for g in decayed])
        hat = v.sqrt() / math.sqrt(1 - b2 ** min(t, warm)) + 1e-8
        put(net, w.addcdiv(m, hat, value=-0.05 / (1 - b1**t)))
    assert results[0].equal(weights(net))


def test_qadam_arguments():
    with pytest.raises(ArgumentError, match=r"lr=-1.*warmup_steps=0"):
        bagua.QAdamOptimizer(model().parameters(), lr=-1, warmup_steps=0)
    with pytest.raises(ArgumentError, match="a QAdamOptimizer"):
        bagua.QAdamAlgorithm(torch.optim.SGD(model().parameters()))


@pytest.mark.parametrize("mode", ["all", "shift_one"])
@pytest.mark.parametrize("interval", [1, 2])
def test_decentralized(mode, interval):
    size = 4

    def work(world):
        algorithm = bagua.DecentralizedAlgorithm(
            peer_selection_mode=mode, communication_interval=interval, hierarchical=False
        )
        return train(world, algorithm, 5)[-1]

    results = on_ranks(size, work)
    nets = [model(0) for _ in range(size)]
    meetings = 0
    for step in range(5):
        before = [weights(n) for n in nets]
        grads = [gradient(n, sample(r, step)) for r, n in enumerate(nets)]
        for r, net in enumerate(nets):
            group = [r]
            if step % interval == 0:
                group = [*range(size)] if mode == "all" else [r, shift_one_peer(r, size, meetings)]
            descend(put(net, sum(before[p] for p in group) / len(group)), grads[r])
        meetings += step % interval == 0
    for result, net in zip(results, nets, strict=True):
        assert result.equal(weights(net))
    assert not results[0].equal(results[1])


@pytest.mark.parametrize("size", [2, 3])
def test_low_precision_decentralized(size):
    def work(world):
        net = model(world.rank)
        optim = torch.optim.SGD(net.parameters(), lr=LR)
        algorithm = bagua.LowPrecisionDecentralizedAlgorithm(hierarchical=False)
        bagua.with_bagua(net, [optim], algorithm)
        for step in range(4):
            optim.zero_grad()
            loss_of(net, sample(world.rank, step)).backward()
            optim.step()
        return [t.clone() for t in algorithm.replicas[0]], weights(net)

    results = on_ranks(size, work)
    for r, ((own, left, right), now) in enumerate(results):
        assert own[: now.numel()].equal(now)
        assert left.equal(results[r - 1][0][0])
        assert right.equal(results[(r + 1) % size][0][0])
    known = [padded(weights(model(0)), size) for _ in range(size)]
    net = model(0)
    for step in range(4):
        changes = []
        for r, w in enumerate(known):
            put(net, w)
            x = w.add(padded(gradient(net, sample(r, step)), size), alpha=-LR)
            changes.append(lossy(x + known[r - 1] / 3 + known[(r + 1) % size] / 3 - w * (5 / 3)))
        known = [w + c for w, c in zip(known, changes, strict=True)]
    for (_, now), w in zip(results, known, strict=True):
        assert now.equal(w[: now.numel()])


def test_low_precision_needs_all_parameters_in_optimizers():
    def work(world):
        net = model()
        optim = torch.optim.SGD(net[0].parameters())
        with pytest.raises(ArgumentError, match=r"2.weight.*in no optimizer"):
            bagua.with_bagua(net, [optim], bagua.LowPrecisionDecentralizedAlgorithm())

    on_ranks(1, work)


@covers("model.bagua_module_name")
def test_algorithms_can_be_exchanged():
    def work(world):
        net = model(world.rank)
        optim = bagua.QAdamOptimizer(net.parameters(), warmup_steps=1)
        for algorithm in (
            bagua.GradientAllReduceAlgorithm(),
            bagua.DecentralizedAlgorithm(),
            bagua.ByteGradAlgorithm(),
            bagua.LowPrecisionDecentralizedAlgorithm(),
            bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1),
            bagua.QAdamAlgorithm(optim),
        ):
            bagua.with_bagua(net, [optim], algorithm)
            assert trained_model_of(net).algorithm is algorithm
            assert net.bagua_module_name == trained_model_of(net).module_name
            for step in range(2):
                optim.zero_grad()
                loss_of(net, sample(world.rank, step)).backward()
                optim.step()
        return weights(net)

    first, second = on_ranks(2, work)
    assert first.equal(second)
    assert first.isfinite().all()
