"""qadam under ``session.run``: the device's moments are communicated, its OPT sections use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import samba
from samba.distributed import bagua
from tests.samba.distributed.bagua.ranks import on_ranks
from tests.samba.distributed.bagua.sessions import CLOSE, Make, in_torch, on_device
from tests.samba.distributed.worlds import BATCH, batch, compile_to, compiled, world
from tests.samba.worlds import Scene, named

WARM, STEPS = 3, 6


@pytest.fixture(scope="module")
def qadam(folder: Path) -> Path:
    """A folder with a PEF with small buckets and qadam's update rule."""
    compile_to(folder, world("qadam"))
    return folder


def scene(folder: Path) -> Scene:
    made = compiled(folder, "qadam")
    made.trace()
    return made


def on_devices(folder: Path, size: int, make: Make = bagua.QAdamAlgorithm, **keywords: Any) -> Any:
    return on_device(folder, make, size, "qadam", steps=STEPS, **keywords)


def rounding_of_steps(size: int = 1) -> torch.Tensor:
    """By what part of it a step after the warm-up is uncertain, for each weight.

    It is divided by the root of the second moment that the warm-up has left: the root mean square
    of its gradients. Where these are small differences of larger numbers, they have the rounding of
    the larger ones, 2**-24 of the largest gradient, and steps are large: ten learning rates.
    """
    made = world("qadam").build()
    gradients = []
    for step in range(WARM):
        made.host_step(batch(BATCH * size, step))
        gradients.append(torch.cat([p.grad.flatten() for p in made.host.parameters()]))
    found = torch.stack(gradients)
    return 2**-24 * found.abs().max() / found.square().mean(0).sqrt()


@pytest.mark.parametrize("size", [1, 2])
def test_as_the_torch_loop(qadam, size):
    found = on_devices(qadam, size)
    wanted = in_torch(bagua.QAdamAlgorithm, size, "qadam", steps=STEPS)
    part = rounding_of_steps(size)
    for ours, theirs in zip(found, wanted, strict=True):
        way = theirs.diff(dim=0, prepend=theirs[:1]).abs().cumsum(0)
        # Six steps where CLOSE is of four.
        assert bool(((ours - theirs).abs() <= 2 * CLOSE + part * way).all())
        assert float((part * way).median()) < CLOSE / 10  # it is a matter of few weights
    assert all(ours.equal(found[0]) for ours in found)


def test_moments_and_not_gradients_are_averaged_after_the_warm_up(qadam):
    """Other algorithms leave the moments of the warm-up as they are, as the optimizer does."""
    found = on_devices(qadam, 2)[0]
    plain = on_devices(qadam, 2, lambda _: bagua.GradientAllReduceAlgorithm())[0]
    assert plain[:WARM].equal(found[:WARM])
    assert not plain[WARM].allclose(found[WARM], rtol=0, atol=5e-4)


@pytest.mark.slow
def test_section_by_section(qadam):
    whole, parts = on_devices(qadam, 2), on_devices(qadam, 2, by_section=True)
    for ours, theirs in zip(parts, whole, strict=True):
        # What XLA fuses may differ, and so the last bit.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE)


def test_alone_it_is_the_torch_optimizer(qadam):
    """Without other ranks and without the algorithm; hyperparameters and state move over."""
    made = scene(qadam)
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
            # Numbers near 0 are sums of larger ones, whose last bit depends on their order.
            ulp = wanted[name].abs().max().item() * 2**-23
            torch.testing.assert_close(state[name], wanted[name], rtol=0, atol=4 * ulp)


@pytest.mark.parametrize("changed", [1, WARM + 1])
def test_weight_decay_of_the_device_holds(qadam, changed):
    """``hyperparam_dict`` reaches the moments of the warm-up; later ones go without it."""
    made = scene(qadam)
    (optimizer,) = made.host_optimizer.param_groups
    bagua.with_session(bagua.QAdamAlgorithm(made.optimizer))
    decays = [3.0 if step == changed else 0.01 for step in range(WARM + 2)]
    for step, decay in enumerate(decays):
        tensors = batch(BATCH, step)
        made.run(named(tensors), data_parallel=True, hyperparam_dict={"weight_decay": decay})
    moved = torch.cat([w.flatten() for w in made.weights().values()])
    host = made.host_optimizer

    def work(_: Any) -> torch.Tensor:
        bagua.with_bagua(made.host, [host], bagua.QAdamAlgorithm(host))
        history = []
        for step, decay in enumerate(decays):
            optimizer["weight_decay"] = decay if changed < WARM else 0.01
            made.host_step(batch(BATCH, step))
            history.append(torch.cat([p.detach().flatten() for p in made.host.parameters()]))
        return torch.stack(history)

    (wanted,) = on_ranks(1, work, nodes=[range(1)])
    way = wanted.diff(dim=0).abs().sum(0)
    # Such a decay moves weights by up to 0.7 in a step, and 16 roundings may make up the step.
    allowed = 0.7 * 16 * 2**-24 + rounding_of_steps() * way
    assert bool(((moved - wanted[-1]).abs() <= allowed).all())


def test_the_count_decides_what_is_communicated(qadam):
    """A state that is loaded ends the warm-up, or begins it anew."""
    made = scene(qadam)
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
