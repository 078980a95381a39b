"""Gradients that a user writes: custom functions and hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.data import batches, points
from tests.recipes.loops import Classifier, adamw, sgd
from tests.recipes.sides import Side


class Sign(torch.autograd.Function):
    """Straight through, where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch declares *grads
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.second(Sign.apply(self.first(x)))
        return F.cross_entropy(logits, y), logits


@recipe()
def binary_activations(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Binary(), data * 2, adamw)


class Quantize(torch.autograd.Function):
    """Weights of a few bits whose gradients pass as they are; the scale gets none."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, bits: int) -> Tensor:
        scale = w.abs().max() / (2 ** (bits - 1) - 1)
        return (w / scale).round() * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return grad, None


class FewBits(Classifier):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(self.body(x), Quantize.apply(self.head.weight, 4), self.head.bias)
        return F.cross_entropy(logits, y), logits


@recipe()
def quantization_aware(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(FewBits(), data * 2, sgd, note_losses=False)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return -ctx.strength * grad, None


class Adversary(nn.Module):
    """A domain classifier whose gradient is turned around for the features."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classes = nn.Linear(6, 12), nn.Linear(12, 3)
        self.domain = nn.Linear(12, 2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.features(x).relu()
        domain = self.domain(Reverse.apply(hidden, 0.3))
        loss = F.cross_entropy(self.classes(hidden), y)
        return loss + F.cross_entropy(domain, y % 2), domain


@recipe()
def gradient_reversal(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Adversary(), data * 2, sgd, note_losses=False)


class Clipped(Classifier):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        logits = self.head(hidden)
        return F.cross_entropy(logits, y), logits


@recipe()
def activation_gradients_clipped_by_a_hook(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Clipped(), data * 2, sgd, note_losses=False)


@recipe()
def masked_weights_by_a_hook(side: Side) -> None:
    """A pruned layer: weights that are zero stay zero, as their gradients are masked."""
    data = batches(points(32), 8)
    model = Classifier()
    mask = (torch.arange(model.head.weight.numel()) % 2).view_as(model.head.weight).float()
    with torch.no_grad():
        model.head.weight.mul_(mask)

    def make(m: nn.Module) -> torch.optim.Optimizer:
        m.head.weight.register_hook(lambda grad: grad * mask)
        return torch.optim.SGD(m.parameters(), lr=0.1)

    side.follow(model, data * 2, make, note_losses=False)


@recipe()
def gradients_of_a_module_scaled_by_a_hook(side: Side) -> None:
    data = batches(points(32), 8)
    model = Classifier()
    model.head.register_full_backward_hook(lambda module, ins, outs: (ins[0] * 0.5,))
    side.follow(model, data * 2, sgd, note_losses=False)


def twice_in_training(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    return out * 2 if module.training else out


@recipe()
def activations_scaled_by_a_forward_hook(side: Side) -> None:
    data = batches(points(32), 8)
    model = Classifier()
    model.body.register_forward_hook(twice_in_training)
    side.follow(model, data * 2, sgd, note_losses=False)
