"""Ranks in one process that train on devices, and the same training in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from samba.distributed import bagua
from samba.distributed.bagua.session import AlgorithmTrainer, attach
from samba.distributed.bagua.training import trained_model_of
from samba.session.loaded import Loaded
from tests.samba.distributed import worlds
from tests.samba.distributed.bagua.ranks import on_ranks
from tests.samba.distributed.worlds import BATCH, batch, loaded, part_of, run_step, world

CLOSE = 2**-22
"""After some steps on a device and in torch: each rounds weights below 0.5 by 2**-26 at most, on
either side, and gradients, which are smaller, in other places."""

Make = Callable[[Any], bagua.Algorithm]
"""Makes an algorithm for an optimizer."""


def together(programs: list[Loaded], work: Callable[[Loaded, int], Any]) -> list[Any]:
    """Do something with several programs as the replicas of a job; raises what a rank raises."""

    def one(program: Loaded, rank: int) -> Any:
        with bagua.use_communicator(program.replicas._job.data, [range(len(programs))]):
            return work(program, rank)

    results = worlds.together(programs, one)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def run(program: Loaded, rank: int, size: int, step: int, types: tuple[str, ...] = ()) -> None:
    """One step as ``session.run`` does it."""
    run_step(program, part_of(batch(BATCH * size, step), rank, size), types=types)


def weights(program: Loaded) -> torch.Tensor:
    """All weights on the device, flat."""
    model = program.model
    return torch.cat([program.read(p.sn_name).flatten() for p in model.parameters()])


def trainer_of(program: Loaded) -> AlgorithmTrainer:
    """Who trains a program."""
    trainer = program.replicas.trainer
    assert isinstance(trainer, AlgorithmTrainer)
    return trainer


def average(trained: Any, step: int) -> None:
    """After every second step, a round of the asynchronous average, if there is one."""
    algorithm = trained.algorithm
    if not isinstance(algorithm, bagua.AsyncModelAverageAlgorithm):
        return
    if step % 2 and step >= algorithm.warmup_steps:
        algorithm.mark_all(trained)
        assert trained.backend.wait_pending_comm_ops() == 1


def in_torch(make: Make, size: int, optimizer: str = "sgd", *, steps: int = 4) -> list[Any]:
    """Training with :func:`with_bagua`; weights after each step, of each rank."""
    scenes = [world(optimizer).build() for _ in range(size)]  # they draw from one generator

    def work(rank_world: Any) -> torch.Tensor:
        made = scenes[rank_world.rank]
        net, optim = made.host, made.host_optimizer
        algorithm = make(optim)
        bagua.with_bagua(net, [optim], algorithm)
        history = []
        for step in range(steps):
            optim.zero_grad()
            net(**part_of(batch(BATCH * size, step), rank_world.rank, size))[0].backward()
            optim.step()
            average(trained_model_of(net), step)
            history.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        if isinstance(algorithm, bagua.AsyncModelAverageAlgorithm):
            algorithm.abort()
        return torch.stack(history)

    return on_ranks(size, work, nodes=[range(size)])


def on_device(
    folder: Path,
    make: Make,
    size: int,
    optimizer: str = "sgd",
    *,
    steps: int = 4,
    by_section: bool = False,
) -> list[Any]:
    """The same training on devices; weights after each step, of each rank."""

    def work(program: Loaded, rank: int) -> torch.Tensor:
        (optim,) = program.optimizers
        attach(program, make(optim))
        history = []
        for step in range(steps):
            for types in (("fwd",), ("bckwd",), ("reduce",), ("opt",)) if by_section else ((),):
                run(program, rank, size, step, types)
            average(trainer_of(program).trained, step)
            history.append(weights(program))
        trainer_of(program).release()
        return torch.stack(history)

    return together([loaded(folder, optimizer) for _ in range(size)], work)
