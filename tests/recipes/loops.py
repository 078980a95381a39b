"""Loops: schedules, accumulation, freezing, averages, checkpoints."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler, swa_utils

import samba
from tests.recipes.book import recipe
from tests.recipes.data import batches, points
from tests.recipes.sides import Run, Side


class Classifier(nn.Module):
    def __init__(self, features: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.body(x))
        return F.cross_entropy(logits, y), logits


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)


@recipe()
def cosine_with_warmup(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], adamw)
    warmup = lr_scheduler.LinearLR(run.optimizer, 0.1, total_iters=4)
    cosine = lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=12)
    schedule = lr_scheduler.SequentialLR(run.optimizer, [warmup, cosine], milestones=[4])
    for _ in range(4):
        for batch in data:
            loss, _ = run.step(batch)
            schedule.step()
            side.note("loss", loss)
    side.note_all(run)


@recipe()
def plateau_of_the_loss(side: Side) -> None:
    data = batches(points(16), 8)
    run = side.train(Classifier(), data[0], sgd)
    schedule = lr_scheduler.ReduceLROnPlateau(run.optimizer, factor=0.5, patience=0, threshold=0.2)
    for _ in range(6):
        total = sum(run.step(batch)[0].item() for batch in data)
        schedule.step(round(total, 3))
        side.note("rate", torch.tensor(run.optimizer.param_groups[0]["lr"]))
    side.note_all(run)


@recipe()
def rmsprop_with_falling_rates(side: Side) -> None:
    data = batches(points(32), 8)

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.9, eps=1e-3, momentum=0.5)

    run = side.train(Classifier(), data[0], make)
    schedule = lr_scheduler.StepLR(run.optimizer, step_size=3, gamma=0.5)
    for batch in data * 2:
        side.note("loss", run.step(batch)[0])
        schedule.step()
    side.note_all(run)


@recipe()
def gradient_accumulation(side: Side) -> None:
    data = batches(points(32), 4)
    run = side.train(Classifier(), data[0], sgd, accumulate=True)
    for start in range(0, len(data), 4):
        run.clear()
        for batch in data[start : start + 4]:
            loss, _ = run.backward(batch)
            side.note("loss", loss)
        run.update()
    side.note_all(run)


@recipe()
def a_frozen_body(side: Side) -> None:
    data = batches(points(32), 8)
    model = Classifier()
    model.body.requires_grad_(False)
    run = side.train(
        model,
        data[0],
        lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.2),
    )
    for batch in data:
        run.step(batch)
    side.note_all(run)


@recipe()
def gradual_unfreezing(side: Side) -> None:
    """The head first, then everything: a new optimizer and, on the device, a new PEF."""
    data = batches(points(32), 8)
    model = Classifier()
    model.body.requires_grad_(False)
    for _ in range(2):
        run = side.train(model, data[0], lambda m: sgd_of(p for p in m.parameters()))
        for batch in data:
            side.note("loss", run.step(batch)[0])
        side.note_all(run)
        model = rebuilt(run)


def sgd_of(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1)


def rebuilt(run: Run) -> Classifier:
    """A new model with the weights of a run, all of them trained."""
    model = Classifier()
    model.load_state_dict({name: value.clone() for name, value in run.weights().items()})
    return model


@recipe()
def layerwise_rates(side: Side) -> None:
    data = batches(points(32), 8)

    def make(model: nn.Module) -> torch.optim.Optimizer:
        decay = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "lr": 0.02}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)

    run = side.train(Classifier(), data[0], make)
    schedule = lr_scheduler.ExponentialLR(run.optimizer, 0.8)
    for batch in data:
        run.step(batch)
        schedule.step()
    side.note_all(run)


@recipe()
def exponential_average_of_weights(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], sgd)
    average = {name: value.clone() for name, value in run.weights().items()}
    for batch in data * 2:
        run.step(batch)
        for name, value in run.weights().items():
            average[name].lerp_(value, 0.1)
    for name, value in average.items():
        side.note(f"average of {name}", value)


@recipe()
def stochastic_weight_averaging(side: Side) -> None:
    """torch's own ``AveragedModel``, of the model that the script holds."""
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], sgd)
    averaged = swa_utils.AveragedModel(Classifier())
    for batch in data * 2:
        run.step(batch)
        snapshot = Classifier()
        snapshot.load_state_dict(run.weights())
        averaged.update_parameters(snapshot)
    for name, value in averaged.module.named_parameters():
        side.note(name, value)


@recipe()
def checkpoint_and_resume(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], adamw)
    for batch in data[:2]:
        run.step(batch)
    run.weights()
    if isinstance(run.model.head.weight, samba.SambaTensor):
        samba.session.to_cpu(run.model, [run.optimizer])
    kept = copy.deepcopy({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()})
    model = Classifier()
    model.load_state_dict({k: samba.to_torch(v) for k, v in kept["model"].items()})

    def resumed(m: nn.Module) -> torch.optim.Optimizer:
        optimizer = adamw(m)
        optimizer.load_state_dict(kept["optimizer"])
        return optimizer

    run = side.train(model, data[0], resumed)
    for batch in data[2:]:
        side.note("loss", run.step(batch)[0])
    side.note_all(run)


@recipe()
def the_best_state_is_loaded_back(side: Side) -> None:
    """``load_state_dict`` in the middle of training counts at the next step."""
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], sgd)
    run.step(data[0])
    best = {name: value.clone() for name, value in run.weights().items()}
    for batch in data[1:]:
        run.step(batch)
    run.model.load_state_dict(best)
    side.note("loss", run.step(data[1])[0])
    side.note_all(run)


@recipe(tells=["fixed-hyperparameter"], differs=True)
def one_cycle_with_adam(side: Side) -> None:
    """The cycle moves beta1 too, which a PEF holds as a number."""
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], adamw)
    schedule = lr_scheduler.OneCycleLR(run.optimizer, max_lr=0.01, total_steps=9)
    for batch in data * 2:
        run.step(batch)
        schedule.step()
    side.note_all(run)


@recipe()
def one_cycle_with_sgd(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], sgd)
    schedule = lr_scheduler.OneCycleLR(run.optimizer, max_lr=0.1, total_steps=9)
    for batch in data * 2:
        run.step(batch)
        schedule.step()
    side.note_all(run)


@recipe(tells=["requires-grad-after-trace"], differs=True)
def freezing_without_compiling_again(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Classifier(), data[0], sgd)
    for epoch in range(2):
        for batch in data:
            run.step(batch)
        if epoch == 0:
            run.model.body.requires_grad_(False)
    side.note_all(run)


@recipe()
def early_stopping_keeps_the_best(side: Side) -> None:
    data = batches(points(40), 8)
    run = side.train(Classifier(), data[0], sgd)
    best, kept = float("inf"), {}
    for _ in range(3):
        for batch in data[:-1]:
            run.step(batch)
        loss = run.predict(data[-1])[0].item()
        if loss < best:
            best, kept = loss, {k: v.clone() for k, v in run.weights().items()}
    side.note("best", torch.tensor(best))
    for name, value in kept.items():
        side.note(name, value)
