"""Torch's other optimizers on the device: checkpoints, schedulers, groups, clipping, policies."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import samba
from samba.compiler.optimizers import UnsupportedOptimizer
from samba.session.check_pef import OptimizerMismatch
from tests.pages import page
from tests.samba.session.loading import loaded
from tests.samba.worlds import Mlp, Scene, World, deviations, named, other_batch

PAGE = "optimizers.md"
MAKERS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "rmsprop": (
        samba.optim.RMSprop,
        torch.optim.RMSprop,
        {"lr": 0.01, "eps": 0.1, "momentum": 0.5, "centered": True},
    ),
    "adagrad": (
        samba.optim.Adagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "eps": 0.01},
    ),
    "adadelta": (samba.optim.Adadelta, torch.optim.Adadelta, {"weight_decay": 0.1, "eps": 0.01}),
    "adamax": (samba.optim.Adamax, torch.optim.Adamax, {"lr": 0.02, "eps": 0.1}),
    "nadam": (
        samba.optim.NAdam,
        torch.optim.NAdam,
        {"lr": 0.02, "eps": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "radam": (samba.optim.RAdam, torch.optim.RAdam, {"lr": 0.02, "eps": 0.1, "betas": (0.9, 0.95)}),
}
"""SambaFlow's class, torch's, and settings that bring all states and damp tiny gradients."""


class Tower(nn.Module):
    """A layer for each optimizer; returns the loss and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in MAKERS)
        self.layers[-1] = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x.tanh())
        return F.cross_entropy(x, y), x


def one_a_layer(which: int, **more: Any) -> Callable[[Tower], list[torch.optim.Optimizer]]:
    """Makes an optimizer for each layer, by the classes at a place in ``MAKERS``."""
    return lambda model: [
        row[which](layer.parameters(), **row[2], **more)
        for row, layer in zip(MAKERS.values(), model.layers, strict=True)
    ]


TOWER = World(name="tower", model=Tower, optimizer=one_a_layer(0))
BREAK, STEPS = 3, 6


def train(scene: Scene, steps: range) -> list[torch.Tensor]:
    return [scene.run(named(other_batch(step)))[0] for step in steps]


def host_train(scene: Scene, steps: range) -> None:
    for step in steps:
        scene.host_step(other_batch(step))


# -- checkpoints, of which test_checkpoint.py has more ----------------------------------------


def test_torchs_checkpoint_goes_on_on_the_device(pefs):
    scene = pefs.scene(TOWER)
    scene.host_optimizer = one_a_layer(1)(scene.host)  # torch's own classes
    host_train(scene, range(BREAK))
    scene.model.load_state_dict(scene.host.state_dict())
    for ours, theirs in zip(scene.optimizer, scene.host_optimizer, strict=True):
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    scene.trace()
    train(scene, range(BREAK, STEPS))
    host_train(scene, range(BREAK, STEPS))
    scene.assert_follows()


def test_without_its_states_an_optimizer_starts_as_torchs_does(pefs):
    """Sums start from ``initial_accumulator_value``, NAdam's product from 1."""
    scene = pefs.loaded(TOWER)
    start = copy.deepcopy(scene.model.state_dict())
    first = train(scene, range(2))
    scene.model.load_state_dict(start)
    for optimizer in scene.optimizer:
        optimizer.state.clear()
    samba.session.to_rdu(scene.model, scene.optimizer)
    assert all(map(torch.equal, first, train(scene, range(2))))
    handles = samba.session.optim_dict
    name = next(name for name in handles if name.endswith("nadam4__mu_product"))
    assert handles[name].sn_data < 1
    handles[name].rdu()
    assert handles[name].sn_data == 1


# -- hyperparameters -------------------------------------------------------------------------


def test_schedulers_and_groups_drive_them_and_compile_nothing(pefs):
    scene = pefs.loaded(TOWER)
    both = [*scene.optimizer, *scene.host_optimizer]
    schedules = [lr_scheduler.ExponentialLR(optimizer, 0.7) for optimizer in both]
    for step in range(4):
        train(scene, range(step, step + 1))
        host_train(scene, range(step, step + 1))
        for optimizer in both:
            optimizer.param_groups[0]["weight_decay"] = 0.1 * step
        for schedule in schedules:
            schedule.step()
    scene.assert_follows()
    assert samba.session.counters.compiles == 1
    rates = {f"{name}{i}__lr": 0.005 * (i + 1) for i, name in enumerate(MAKERS)}
    for i, optimizer in enumerate(scene.host_optimizer):
        optimizer.param_groups[0]["lr"] = 0.005 * (i + 1)
    samba.session.run(scene.inputs, (), hyperparam_dict=rates)
    scene.host_step()
    scene.assert_follows()
    assert samba.session.counters.compiles == 1


def test_momentum_of_rmsprop_comes_and_goes(pefs):
    scene = pefs.loaded(TOWER)
    for step, momentum in enumerate((0.5, 0.0, 0.0, 0.8)):
        for optimizer in (scene.optimizer[0], scene.host_optimizer[0]):
            optimizer.param_groups[0]["momentum"] = momentum
        train(scene, range(step, step + 1))
        host_train(scene, range(step, step + 1))
    scene.assert_follows()
    assert samba.session.counters.compiles == 2, "without momentum no buffer is kept: another plan"


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=0.01, eps=0.1)


LATER = World(name="rmsprop_later", optimizer=rmsprop)


def test_a_momentum_that_comes_later_starts_from_zeros(pefs):
    """Torch, which makes the buffer at the first step alone, raises."""
    scene = pefs.loaded(LATER)
    train(scene, range(1))
    host_train(scene, range(1))
    samba.session.to_cpu(scene.model, scene.optimizer)
    for state in scene.optimizer.state.values():
        assert state.keys() == {"step", "square_avg"}, (
            "as torch's, while momentum has always been 0"
        )
    for optimizer in (scene.optimizer, scene.host_optimizer):
        optimizer.param_groups[0]["momentum"] = 0.8
    with pytest.raises(KeyError, match="momentum_buffer"):
        host_train(scene, range(1, 2))
    for parameter, state in scene.host_optimizer.state.items():
        state["momentum_buffer"] = torch.zeros_like(parameter)
    train(scene, range(1, 3))
    host_train(scene, range(1, 3))
    scene.assert_follows()
    samba.session.to_cpu(scene.model, scene.optimizer)
    for state in scene.optimizer.state.values():
        assert state.keys() == {"step", "square_avg", "momentum_buffer"}


def test_one_cycle_drives_the_momentum_of_rmsprop(pefs):
    scene = pefs.scene(LATER)
    schedules = [
        lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=6)
        for o in (scene.optimizer, scene.host_optimizer)
    ]
    scene.trace()
    for step in range(4):
        train(scene, range(step, step + 1))
        host_train(scene, range(step, step + 1))
        for schedule in schedules:
            schedule.step()
    scene.assert_follows()


FIXED = {"alpha": 0, "rho": 2, "lr_decay": 1, "momentum_decay": 4, "decoupled_weight_decay": 5}
"""Settings of the PEF, and which optimizer of the tower has them."""


def test_settings_that_the_pef_holds_are_told(pefs, caplog):
    scene = pefs.loaded(TOWER)
    scene.run()
    for name, place in FIXED.items():
        scene.optimizer[place].param_groups[0][name] = 0.75
        scene.optimizer[place].param_groups[0]["lr"] = 0.001
    scene.run()
    assert deviations(caplog) == ["fixed-hyperparameter"] * len(FIXED)
    assert all(f"param_groups[0]['{name}'] changed from" in caplog.text for name in FIXED)


def test_other_settings_than_compiled_are_refused(pefs):
    scene = pefs.scene(TOWER)
    scene.optimizer[0].param_groups[0]["alpha"] = 0.5
    with pytest.raises(OptimizerMismatch, match=r"alpha: found 0\.5, compiled 0\.99"):
        scene.trace()
    scene.optimizer[0].param_groups[0]["alpha"] = 0.99
    scene.optimizer[1].defaults["initial_accumulator_value"] = 0.2
    with pytest.raises(OptimizerMismatch, match=r"initial_accumulator_value: found 0\.2, comp"):
        scene.trace()


# -- groups, clipping, policies --------------------------------------------------------------


def grouped(model: Mlp) -> list[torch.optim.Optimizer]:
    """Groups of one optimizer with different settings."""
    first, second = (
        [{"params": [layer.weight]}, {"params": [layer.bias]}]
        for layer in (model.first, model.second)
    )
    first[1] |= {"centered": True, "momentum": 0.5, "alpha": 0.5, "weight_decay": 0.1}
    second[1] |= {"decoupled_weight_decay": True, "betas": (0.5, 0.9), "lr": 0.05}
    return [
        torch.optim.RMSprop(first, lr=0.01, eps=0.1),
        torch.optim.NAdam(second, lr=0.01, eps=0.1, weight_decay=0.2),
    ]


@pytest.mark.parametrize(
    "level", ["o0", *(pytest.param(o, marks=pytest.mark.slow) for o in ("o1", "o3"))]
)
def test_groups_have_settings_of_their_own_under_every_policy(tmp_path, level):
    world = World(name="grouped", optimizer=grouped, config={"optim_level": level})
    scene = loaded(world, tmp_path)
    train(scene, range(4))
    host_train(scene, range(4))
    scene.assert_follows()


def test_gradients_are_clipped(tmp_path):
    world = World(
        name="clipped", model=Tower, optimizer=one_a_layer(0, max_grad_norm=0.01)
    )  # the host's twin clips by itself
    scene = loaded(world, tmp_path)
    train(scene, range(3))
    host_train(scene, range(3))
    scene.assert_follows()
    free = TOWER.build()
    host_train(free, range(3))
    for ours, theirs in zip(scene.host.layers, free.host.layers, strict=True):
        assert not torch.allclose(ours.weight, theirs.weight, atol=1e-5)


# -- what is refused -------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Updates by sign, as a script may bring it along; torch has none."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    "make",
    [Lion, torch.optim.Rprop, torch.optim.ASGD, torch.optim.LBFGS, torch.optim.Adafactor],
)
def test_others_are_refused_by_name_with_what_there_is(tmp_path: Path, make: Any) -> None:
    assert not hasattr(torch.optim, "Lion"), "torch has one now: it gets a row"
    scene = World(name="other", optimizer=lambda m: make(m.parameters())).build()
    wanted = (
        rf"optimizer {make.__name__}: the device has no update rule.*SGD, Adam, AdamW, "
        r"QAdamOptimizer, RMSprop, "
        "Adagrad, Adadelta, Adamax, NAdam, RAdam.*step on the host"
    )
    with pytest.raises(UnsupportedOptimizer, match=wanted):
        scene.compile(tmp_path)


def test_the_host_steps_for_an_optimizer_that_the_device_has_not(tmp_path: Path) -> None:
    """What the refusal says: compile without one, and step by ``sn_grad`` and ``sn_data``."""
    scene = loaded(World(name="by_host", optimizer=lambda m: None), tmp_path)
    ours = torch.optim.Rprop(scene.model.parameters(), lr=0.01)
    scene.host_optimizer = torch.optim.Rprop(scene.host.parameters(), lr=0.01)
    for step in range(3):
        step_on_the_host(scene, ours, step)
        scene.host_step(other_batch(step))
    scene.assert_follows()


def step_on_the_host(scene: Scene, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Gradients from the device, a step on the host, weights back."""
    scene.run(named(other_batch(step)))
    samba.session.to_cpu(scene.model)
    for parameter in scene.model.parameters():
        parameter.grad = samba.to_torch(parameter.sn_grad)
    optimizer.step()
    samba.session.to_rdu(scene.model)


def test_the_example_of_the_page_prints_what_stands_there(tmp_path, monkeypatch, capsys):
    text = page(PAGE, "Optimizers that step on the host")
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for code, printed in blocks:  # the second one goes on from the first
        exec(compile(code, PAGE, "exec"), names)  # our own page
        assert capsys.readouterr().out.endswith(printed)
