"""qadam under ``session.run``: the device's moments are communicated, its OPT sections use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import samba
from samba.distributed import bagua
from samba.distributed.bagua.session import attach
from samba.loading import Loaded
from tests.samba.distributed.bagua.ranks import on_ranks
from tests.samba.distributed.bagua.test_session import run, together, trainer_of, weights
from tests.samba.distributed.worlds import BATCH, batch, compile_to, part_of, world
from tests.samba.worlds import Scene, named

WARM, STEPS = 3, 6
CLOSE = 2e-6


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PEF with small buckets and qadam's update rule."""
    folder: Path = tmp_path_factory.mktemp("qadam")
    compile_to(folder, world("qadam"))
    return str(folder / "qadam_8_dp" / "qadam_8_dp.pef")


def scene(pef: str) -> Scene:
    made = world("qadam").build()
    made.pef = pef
    made.trace()
    return made


def loaded(pef: str) -> Loaded:
    scene(pef)
    found = samba.session._loaded
    assert found is not None
    return found


def algorithm_of(program: Loaded) -> bagua.QAdamAlgorithm:
    (optimizer,) = program.optimizers  # type: ignore[attr-defined]  # a program of one graph
    return bagua.QAdamAlgorithm(optimizer)


def on_device(
    pef: str,
    size: int,
    *,
    by_section: bool = False,
    make: Callable[[Loaded], bagua.Algorithm] = algorithm_of,
) -> list[torch.Tensor]:
    """Training on the device; weights after each step, of each rank."""

    def work(program: Loaded, rank: int) -> torch.Tensor:
        attach(program, make(program))
        history = []
        for step in range(STEPS):
            for types in ("fwd", "bckwd", "reduce", "opt") if by_section else ((),):
                run(program, rank, size, step, types)
            history.append(weights(program))
        trainer_of(program).release()
        return torch.stack(history)

    return together([loaded(pef) for _ in range(size)], work)


def in_torch(size: int) -> list[torch.Tensor]:
    """The same training with ``with_bagua``."""
    scenes = [world("qadam").build() for _ in range(size)]  # they draw from torch's one generator

    def work(rank_world: Any) -> torch.Tensor:
        made = scenes[rank_world.rank]
        net, optim = made.host, made.host_optimizer
        bagua.with_bagua(net, [optim], bagua.QAdamAlgorithm(optim))
        history = []
        for step in range(STEPS):
            optim.zero_grad()
            net(**part_of(batch(BATCH * size, step), rank_world.rank, size))[0].backward()
            optim.step()
            history.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        return torch.stack(history)

    return on_ranks(size, work, nodes=[range(size)])


@pytest.mark.parametrize("size", [1, 2])
def test_as_the_torch_loop(pef, size):
    found, wanted = on_device(pef, size), in_torch(size)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours[:WARM], theirs[:WARM], rtol=0, atol=CLOSE)
        # The last bit of a number on the border of two codes decides which of them it gets.
        torch.testing.assert_close(ours[WARM:], theirs[WARM:], rtol=0, atol=5e-4)
    assert all(ours.equal(found[0]) for ours in found)


def test_moments_and_not_gradients_are_averaged_after_the_warm_up(pef):
    """Other algorithms leave the moments of the warm-up as they are, as the optimizer does."""
    found = on_device(pef, 2)[0]
    plain = on_device(pef, 2, make=lambda _: bagua.GradientAllReduceAlgorithm())[0]
    torch.testing.assert_close(plain[:WARM], found[:WARM], rtol=0, atol=CLOSE)
    assert not plain[WARM].allclose(found[WARM], rtol=0, atol=5e-4)


@pytest.mark.slow
def test_section_by_section(pef):
    whole, parts = on_device(pef, 2), on_device(pef, 2, by_section=True)
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-4)


def test_alone_it_is_the_torch_optimizer(pef):
    """Without other ranks and without the algorithm; hyperparameters and state move over."""
    made = scene(pef)
    for step in range(STEPS):
        tensors = batch(BATCH, step)
        made.run(named(tensors))
        made.host_step(tensors)
        made.assert_follows()
    samba.session.optimizers_to_cpu(made.optimizer)
    for ours, theirs in zip(
        made.model.parameters(), made.host_optimizer.param_groups[0]["params"], strict=True
    ):
        state, wanted = made.optimizer.state[ours], made.host_optimizer.state[theirs]
        assert int(state["step"]) == wanted["step"] == STEPS
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(state[name], wanted[name], rtol=2e-6, atol=1e-8)


def test_weight_decay_of_the_device_holds(pef):
    """``hyperparam_dict`` reaches the moments that are communicated."""
    made = scene(pef)
    (optimizer,) = made.host_optimizer.param_groups
    bagua.with_session(bagua.QAdamAlgorithm(made.optimizer))
    for step in range(WARM + 2):
        tensors, decay = batch(BATCH, step), 0.01 if step <= WARM else 3.0
        made.run(named(tensors), data_parallel=True, hyperparam_dict={"weight_decay": decay})
    moved = torch.cat([w.flatten() for w in made.weights().values()])
    optimizer["weight_decay"] = 0.01
    host = made.host_optimizer

    def work(_: Any) -> torch.Tensor:
        bagua.with_bagua(made.host, [host], bagua.QAdamAlgorithm(host))
        for step in range(WARM + 2):
            optimizer["weight_decay"] = 0.01 if step <= WARM else 3.0
            made.host_step(batch(BATCH, step))
        return torch.cat([p.detach().flatten() for p in made.host.parameters()])

    (wanted,) = on_ranks(1, work, nodes=[range(1)])
    torch.testing.assert_close(moved, wanted, rtol=0, atol=5e-4)


def test_the_count_decides_what_is_communicated(pef):
    """A state that is loaded ends the warm-up, or begins it anew."""
    made = scene(pef)
    algorithm = bagua.QAdamAlgorithm(made.optimizer)
    bagua.with_session(algorithm)
    for step in range(WARM):
        made.run(named(batch(BATCH, step)), data_parallel=True)
    assert algorithm.need_reset()
    samba.session.optimizers_to_cpu(made.optimizer)
    for state in made.optimizer.state.values():
        state["step"] = 0
    samba.session.optimizers_to_rdu(made.optimizer)
    assert not algorithm.need_reset()
