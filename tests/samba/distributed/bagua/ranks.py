"""Ranks in one process, and a model that they train."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from emulator.replicas.comm.inprocess import run_ranks
from samba.distributed import bagua
from samba.distributed.bagua.training import trained_model_of

NAMES = (
    *("gradient_allreduce", "bytegrad", "qadam"),
    *("decentralized", "low_precision_decentralized", "async"),
)
"""The algorithms."""
T = TypeVar("T")


def on_ranks(
    size: int,
    work: Callable[[Any], T],
    *,
    nodes: Sequence[Sequence[int]] | None = None,
    deadline: float = 20.0,
) -> list[T]:
    """Run a function of the world on every rank; the first exception of a rank is raised."""

    def run(comm: Any) -> T:
        with bagua.use_communicator(comm, nodes) as world:
            return work(world)

    results = run_ranks(size, run, deadline=deadline)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # pyright: ignore[reportReturnType]  # exceptions were raised


def model(seed: int = 0) -> nn.Module:
    """Two layers, with weights of their own for each seed."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for p in made.parameters():
        p.data.normal_(generator=generator)
    return made


def sample(rank: int, step: int) -> torch.Tensor:
    """What a rank trains on in a step."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1000 * rank + step))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (net(x) - x[:, :3]).pow(2).mean()


def weights(net: nn.Module) -> torch.Tensor:
    """All weights, flat."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def gradient(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """All gradients of a sample, flat; for references."""
    grads = torch.autograd.grad(loss_of(net, x), list(net.parameters()))
    return torch.cat([g.reshape(-1) for g in grads])


def put(net: nn.Module, flat: torch.Tensor) -> nn.Module:
    """Give a model all weights from a flat tensor."""
    offset = 0
    for p in net.parameters():
        p.data = flat[offset : offset + p.numel()].view(p.shape).clone()
        offset += p.numel()
    return net


def descend(net: nn.Module, direction: torch.Tensor, lr: float = 0.1) -> nn.Module:
    """What SGD makes of all weights; for references."""
    return put(net, weights(net).add(direction, alpha=-lr))


def train(
    world: Any,
    algorithm: bagua.Algorithm,
    steps: int,
    *,
    lr: float = 0.1,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> list[torch.Tensor]:
    """Train with Bagua; returns the weights after each step. Ranks begin with other weights."""
    net = model(seed=world.rank)
    make = optimizer or (lambda ps: torch.optim.SGD(ps, lr=lr))
    optim = make(list(net.parameters()))
    bagua.with_bagua(net, [optim], algorithm)
    history = []
    for number in range(steps):
        step(net, optim, sample(world.rank, number))
        history.append(weights(net))
    return history


NEVER = 10**7
"""Milliseconds that no test takes: the averaging thread makes no round of its own."""


def train_async(rank: int, steps: int = 6, rounds: Sequence[int] = (1, 2, 4)) -> torch.Tensor:
    """Train with asynchronous averages that come after given steps; returns the weights."""
    net = model(rank)
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=NEVER)
    bagua.with_bagua(net, [optim], algorithm)
    for number in range(steps):
        step(net, optim, sample(rank, number))
        if number in rounds:
            start_round(net)
            finish_round(net)
    algorithm.abort()
    return weights(net)


def step(net: nn.Module, optim: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """A training step."""
    optim.zero_grad()
    loss_of(net, x).backward()
    optim.step()


def start_round(net: nn.Module) -> None:
    """What the averaging thread does when its time has come."""
    trained = trained_model_of(net)
    assert isinstance(trained.algorithm, bagua.AsyncModelAverageAlgorithm)
    trained.algorithm.mark_all(trained)


def finish_round(net: nn.Module) -> None:
    """Wait for the round that was started."""
    assert trained_model_of(net).backend.wait_pending_comm_ops() == 1


def rounds_by_the_clock(rank: int, turns: int = 2) -> int:
    """Each turn: weights of each rank's own become the mean, which lr 0 keeps; then an abort."""
    net = model()
    optim = torch.optim.SGD(net.parameters(), lr=0.0)
    algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1)
    bagua.with_bagua(net, [optim], algorithm)
    for turn in range(turns):
        with torch.no_grad():
            own = model(10 * turn + rank)
            for p, q in zip(net.parameters(), own.parameters(), strict=True):
                p.copy_(q)
        # Read before the clock goes on: ranks that count from other rounds end at other rounds.
        before, until = algorithm.rounds, time.monotonic() + 60
        algorithm.resume()
        algorithm.resume()
        while algorithm.rounds < before + 3 and time.monotonic() < until:
            step(net, optim, sample(rank, 0))
        algorithm.abort()
        algorithm.abort()
        rounds = algorithm.rounds
        assert rounds >= before + 3
        mean = torch.stack([weights(model(10 * turn + r)) for r in range(2)]).mean(0)
        # w + (mean - w): the difference is below 4 and rounded by 2**-23 at most, the sum by less.
        torch.testing.assert_close(weights(net), mean, rtol=0, atol=2**-22)
        step(net, optim, sample(rank, 0))
        assert algorithm.rounds == rounds
    return algorithm.rounds
