"""gradient_allreduce, and what all algorithms share."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from samba.distributed import bagua
from samba.errors import ArgumentError
from tests.samba.distributed.bagua.ranks import (
    descend,
    gradient,
    loss_of,
    model,
    on_ranks,
    sample,
    train,
    weights,
)


def reference(size: int, steps: int, *, average: bool = True) -> torch.Tensor:
    net = model(seed=0)
    for step in range(steps):
        grad = sum(gradient(net, sample(r, step)) for r in range(size))
        descend(net, grad / (size if average else 1))
    return weights(net)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("hierarchical", [True, False])
@pytest.mark.parametrize("bucket_bytes", ["80", "100000"])
def test_against_the_reference(monkeypatch, average, hierarchical, bucket_bytes):
    monkeypatch.setenv("BAGUA_DEFAULT_BUCKET_SIZE", bucket_bytes)
    algorithm = {"hierarchical": hierarchical, "average": average}

    def work(world):
        return train(world, bagua.Algorithm.init("gradient_allreduce", **algorithm), 4)[-1]

    results = on_ranks(3, work, nodes=[[0], [1, 2]])
    assert all(r.equal(results[0]) for r in results)
    wanted = reference(3, 4, average=average)
    if hierarchical:
        # In each of 4 steps the last bit of numbers below 4: (b + c) + a is rounded otherwise.
        torch.testing.assert_close(results[0], wanted, rtol=0, atol=4 * 2**-22)
    else:
        assert results[0].equal(wanted)


def test_rank_0_gives_all_its_state():
    def work(world):
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        for t in [*net.parameters(), *net.buffers()]:
            t.data.fill_(world.rank + 1)
        optim = torch.optim.Adam(net.parameters())
        if world.rank == 0:
            loss_of(net, sample(0, 0)).backward()
            optim.step()
        bagua.with_bagua(net, [optim], bagua.GradientAllReduceAlgorithm())
        state = optim.state_dict()["state"]
        return torch.cat(
            [weights(net), *(b.float().view(-1) for b in net.buffers())]
            + [s[k].view(-1) for s in state.values() for k in sorted(s)]
        )

    first, second = on_ranks(2, work)
    assert first.equal(second)
    assert first.numel() > 60


def test_a_parameter_that_some_ranks_do_not_use():
    def work(world):
        net = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        for p in net.parameters():
            p.data.fill_(1)
        bagua.with_bagua(net, [], bagua.GradientAllReduceAlgorithm())
        loss_of(net[world.rank], sample(world.rank, 0)).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    first, second = on_ranks(2, work)
    assert first.equal(second)
    assert first.numel() == 30
    alone = nn.Linear(4, 3)
    for p in alone.parameters():
        p.data.fill_(1)
    assert first[:15].equal(gradient(alone, sample(0, 0)) / 2)


def test_a_backward_pass_that_fails_leaves_nothing_behind():
    """A script may leave out a batch that is too much for it; all ranks do so."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient for one input
            raise MemoryError("too large")

    def work(world):
        net = model()
        bagua.with_bagua(net, [], bagua.GradientAllReduceAlgorithm())
        hook = net[1].register_forward_hook(lambda *_: Fails.apply(_[-1]))
        with pytest.raises(MemoryError):
            loss_of(net, sample(world.rank, 0)).backward()
        hook.remove()
        net.zero_grad(set_to_none=False)
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(lambda p: time.sleep(0.02 * world.rank))
        loss_of(net, sample(world.rank, 0)).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    wanted = (gradient(model(), sample(0, 0)) + gradient(model(), sample(1, 0))) / 2
    assert all(found.equal(wanted) for found in on_ranks(2, work))


def test_two_models_have_two_backends():
    def work(world):
        nets = [model(world.rank), model(world.rank + 5)]
        for net in nets:
            bagua.with_bagua(net, [], bagua.GradientAllReduceAlgorithm())
        sum(loss_of(net, sample(world.rank, 0)) for net in nets).backward()
        return [torch.cat([p.grad.flatten() for p in net.parameters()]) for net in nets]

    (a0, b0), (a1, b1) = on_ranks(2, work)
    assert a0.equal(a1)
    assert b0.equal(b1)
    assert not a0.equal(b0)


def test_a_peer_that_fails_ends_the_step():
    def work(world):
        net = model()
        bagua.with_bagua(net, [], bagua.GradientAllReduceAlgorithm(), "net")
        if world.rank == 1:
            raise KeyError("lost")
        with pytest.raises(bagua.BucketError, match=r"bucket 0 of net: .*rank 1") as caught:
            loss_of(net, sample(0, 0)).backward()
        assert caught.value.ranks == (1,)

    with pytest.raises(KeyError, match="lost"):
        on_ranks(2, work)


def test_arguments():
    with pytest.raises(ArgumentError, match="gradient_allreduce"):
        bagua.Algorithm.init("nothing")
    with pytest.raises(ArgumentError, match="has no trained parameters"):
        bagua.with_bagua(nn.ReLU(), [], bagua.GradientAllReduceAlgorithm())
