"""Torch's schedulers drive a run: what they change in ``param_groups`` counts on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from samba.errors import ArgumentError
from tests.samba.worlds import Scene, World, deviations

STEPS = 9


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = list(parameters)
    return torch.optim.SGD([{"params": [first], "lr": 0.2}, {"params": rest}], lr=0.05)


Make = Callable[..., torch.optim.Optimizer]
SCHEDULERS: dict[str, tuple[Make, Callable[..., Any]]] = {
    "StepLR": (sgd, lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5)),
    "Cosine": (adamw, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS)),
    "OneCycle": (sgd, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=STEPS + 1)),
    "ReduceLROnPlateau": (sgd, lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1)),
    "Lambda, two groups": (two_groups, lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.8**n)),
    "Sequential": (
        adamw,
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.7)],
            milestones=[4],
        ),
    ),
}


def world(make: Make) -> World:
    return World(name=f"scheduled_{make.__name__}", optimizer=lambda m: make(m.parameters()))


@pytest.fixture
def scene(pefs) -> Scene:
    return pefs.loaded(world(sgd))


def step(scene: Scene, **keywords: Any) -> None:
    scene.run(**keywords)
    scene.host_step()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_drives_the_device_as_it_drives_torch(pefs, name):
    make, schedule = SCHEDULERS[name]
    scene = pefs.loaded(world(make))
    theirs, ours = schedule(scene.host_optimizer), schedule(scene.optimizer)
    rates = set()
    for _ in range(STEPS):
        step(scene)
        for scheduler in (theirs, ours):
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                # One number for both, as the two losses differ in their last bit.
                scheduler.step(1.0)
            else:
                scheduler.step()
        rates.add(scene.optimizer.param_groups[0]["lr"])
    assert len(rates) > 1
    scene.assert_follows()


def test_without_the_changed_rate_the_weights_are_others(scene):
    """The comparison bites: a device that kept the first rate would be found."""
    for _ in range(4):
        step(scene)
        scene.host_optimizer.param_groups[0]["lr"] *= 0.5
    with pytest.raises(AssertionError):
        scene.assert_follows()


def test_hyperparam_dict_wins_over_the_group(scene):
    scene.optimizer.param_groups[0]["lr"] = 0.7
    scene.host_optimizer.param_groups[0]["lr"] = 0.02
    for _ in range(3):
        step(scene, hyperparam_dict={"lr": 0.02})
    scene.assert_follows()


def test_a_group_changed_after_hyperparam_dict_counts(scene):
    scene.run(hyperparam_dict={"lr": 0.02})
    scene.host_optimizer.param_groups[0]["lr"] = 0.02
    scene.host_step()
    for optimizer in (scene.optimizer, scene.host_optimizer):
        optimizer.param_groups[0]["lr"] = 0.3
        optimizer.param_groups[0]["weight_decay"] = 0.0
    for _ in range(2):
        step(scene)
    scene.assert_follows()


def test_a_rate_in_a_tensor_that_is_changed_in_place(scene):
    rate = scene.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    for _ in range(3):
        rate *= 0.5
        scene.host_optimizer.param_groups[0]["lr"] *= 0.5
        step(scene)
    scene.assert_follows()


def test_groups_that_load_state_dict_replaces_are_the_groups(scene):
    state = scene.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.3
    scene.optimizer.load_state_dict(state)
    scene.host_optimizer.param_groups[0]["lr"] = 0.3
    step(scene)
    scene.assert_follows()


def test_a_rate_that_is_none_is_refused_with_its_place(scene):
    before = scene.model.first.weight.sn_data
    scene.optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ArgumentError, match=r"SGD\.param_groups\[0\]\['lr'\].*found float -1"):
        scene.run()
    assert torch.equal(scene.model.first.weight.sn_data, before)
    scene.optimizer.param_groups[0]["lr"] = scene.host_optimizer.param_groups[0]["lr"] = 0.2
    step(scene)
    scene.assert_follows()


def test_settings_that_the_pef_holds_are_told_once(pefs, caplog):
    scene = pefs.loaded(world(adamw))
    with caplog.at_level(logging.WARNING, "samba"):
        for beta in (0.8, 0.7):
            scene.optimizer.param_groups[0]["betas"] = (beta, 0.999)
            scene.optimizer.param_groups[0]["lr"] = beta / 100
            scene.run()
    told = [r.getMessage() for r in caplog.records if "betas" in r.getMessage()]
    assert len(told) == 1
    assert "AdamW.param_groups[0]['betas'] changed from (0.9, 0.999) to (0.8, 0.999)" in told[0]


def test_a_group_added_after_the_load_is_told_once(scene, caplog):
    scene.run()
    scene.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 1.0})
    for _ in range(3):
        scene.run()
    assert deviations(caplog) == ["added-group"]
    assert "SGD has 2 parameter groups, but had 1 when it was loaded" in caplog.text
