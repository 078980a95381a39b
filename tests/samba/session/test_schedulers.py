"""Torch's schedulers drive a run: what they change in ``param_groups`` counts on the device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import samba
from samba import utils
from samba.errors import ArgumentError
from tests.samba.shared_traces import share_trace
from tests.samba.worlds import close, deviations

STEPS = 9


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x).tanh()) - y).square().mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = list(parameters)
    return torch.optim.SGD([{"params": [first], "lr": 0.2}, {"params": rest}], lr=0.05)


SCHEDULERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[..., Any]]] = {
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


class Race:
    """The same model trained by torch and on the device."""

    def __init__(self, folder: Any, make: Callable[..., torch.optim.Optimizer]) -> None:
        self.host = Net()
        self.model = copy.deepcopy(self.host)
        share_trace(samba.from_torch_model_(self.model))
        self.x, self.y = torch.randn(8, 5), torch.randn(8, 1)
        self.host_optimizer, self.optimizer = (
            make(self.host.parameters()),
            make(self.model.parameters()),
        )
        config = {"output_folder": str(folder), "pef_name": "net"}
        given = self.given()
        pef = samba.session.compile(self.model, given, self.optimizer, config_dict=config)
        utils.trace_graph(self.model, given, self.optimizer, pef=pef)

    def given(self) -> tuple[samba.SambaTensor, ...]:
        return tuple(
            samba.from_torch_tensor(t.clone(), name=n) for n, t in (("x", self.x), ("y", self.y))
        )

    def host_step(self) -> None:
        self.host_optimizer.zero_grad()
        self.host(self.x, self.y).backward()
        self.host_optimizer.step()

    def step(self, **keywords: Any) -> None:
        samba.session.run(self.given(), self.model.output_tensors, **keywords)

    def assert_same(self) -> None:
        samba.session.to_cpu(self.model)
        for ours, theirs in zip(self.model.parameters(), self.host.parameters(), strict=True):
            close(ours.torch(), theirs.detach())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_drives_the_device_as_it_drives_torch(tmp_path, name):
    make, schedule = SCHEDULERS[name]
    race = Race(tmp_path, make)
    theirs, ours = schedule(race.host_optimizer), schedule(race.optimizer)
    rates = set()
    for _ in range(STEPS):
        race.host_step()
        race.step()
        for scheduler in (theirs, ours):
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                # One number for both, as the two losses differ in their last bit.
                scheduler.step(1.0)
            else:
                scheduler.step()
        rates.add(race.optimizer.param_groups[0]["lr"])
    assert len(rates) > 1
    race.assert_same()


def test_without_the_changed_rate_the_weights_are_others(tmp_path):
    """The comparison bites: a device that kept the first rate would be found."""
    race = Race(tmp_path, sgd)
    for _ in range(4):
        race.host_step()
        race.step()
        race.host_optimizer.param_groups[0]["lr"] *= 0.5
    with pytest.raises(AssertionError):
        race.assert_same()


def test_hyperparam_dict_wins_over_the_group(tmp_path):
    race = Race(tmp_path, sgd)
    race.optimizer.param_groups[0]["lr"] = 0.7
    race.host_optimizer.param_groups[0]["lr"] = 0.02
    for _ in range(3):
        race.host_step()
        race.step(hyperparam_dict={"lr": 0.02})
    race.assert_same()


def test_a_group_changed_after_hyperparam_dict_counts(tmp_path):
    race = Race(tmp_path, sgd)
    race.step(hyperparam_dict={"lr": 0.02})
    race.host_optimizer.param_groups[0]["lr"] = 0.02
    race.host_step()
    for optimizer in (race.optimizer, race.host_optimizer):
        optimizer.param_groups[0]["lr"] = 0.3
        optimizer.param_groups[0]["weight_decay"] = 0.0
    for _ in range(2):
        race.host_step()
        race.step()
    race.assert_same()


def test_a_rate_in_a_tensor_that_is_changed_in_place(tmp_path):
    race = Race(tmp_path, sgd)
    rate = race.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    for _ in range(3):
        rate *= 0.5
        race.host_optimizer.param_groups[0]["lr"] *= 0.5
        race.host_step()
        race.step()
    race.assert_same()


def test_groups_that_load_state_dict_replaces_are_the_groups(tmp_path):
    race = Race(tmp_path, sgd)
    state = race.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.3
    race.optimizer.load_state_dict(state)
    race.host_optimizer.param_groups[0]["lr"] = 0.3
    race.host_step()
    race.step()
    race.assert_same()


def test_a_rate_that_is_none_is_refused_with_its_place(tmp_path):
    race = Race(tmp_path, sgd)
    before = race.model.first.weight.sn_data
    race.optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ArgumentError, match=r"SGD\.param_groups\[0\]\['lr'\].*found float -1"):
        race.step()
    assert torch.equal(race.model.first.weight.sn_data, before)
    race.optimizer.param_groups[0]["lr"] = race.host_optimizer.param_groups[0]["lr"] = 0.2
    race.host_step()
    race.step()
    race.assert_same()


def test_settings_that_the_pef_holds_are_told_once(tmp_path, caplog):
    race = Race(tmp_path, adamw)
    with caplog.at_level(logging.WARNING, "samba"):
        for beta in (0.8, 0.7):
            race.optimizer.param_groups[0]["betas"] = (beta, 0.999)
            race.optimizer.param_groups[0]["lr"] = beta / 100
            race.step()
    told = [r.getMessage() for r in caplog.records if "betas" in r.getMessage()]
    assert len(told) == 1
    assert "AdamW.param_groups[0]['betas'] changed from (0.9, 0.999) to (0.8, 0.999)" in told[0]


def test_a_group_added_after_the_load_is_told_once(tmp_path, caplog):
    race = Race(tmp_path, sgd)
    race.step()
    race.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 1.0})
    for _ in range(3):
        race.step()
    assert deviations(caplog) == ["added-group"]
    assert "SGD has 2 parameter groups, but had 1 when it was loaded" in caplog.text
