"""Eager PyTorch as a contender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.case import AdamW, Batch, Case, Sgd
from bench.peers import Prepared


def make_optimizer(settings: Sgd | AdamW, model: nn.Module) -> torch.optim.Optimizer:
    """Return torch's optimizer with the settings of a case, all else at its default."""
    if isinstance(settings, Sgd):
        return torch.optim.SGD(
            model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def to_torch(batch: Batch) -> tuple[torch.Tensor, ...]:
    """Return the arrays of a batch as tensors."""
    return tuple(torch.from_numpy(array) for array in batch)


def training_step(
    model: Callable[..., Any], optimizer: torch.optim.Optimizer
) -> Callable[[tuple[torch.Tensor, ...]], float]:
    """Return the usual five lines as a function."""

    def step(batch: tuple[torch.Tensor, ...]) -> float:
        optimizer.zero_grad()
        loss = model(*batch)[0]
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    return to_torch, training_step(model, make_optimizer(case.optimizer, model))
