"""PyTorch as a contender: eager, with ``torch.compile``, and as one of several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.case import Batch, Case, optimizer_of
from bench.peers import Prepared


def to_torch(batch: Batch) -> tuple[torch.Tensor, ...]:
    """Return the arrays of a batch as tensors."""
    return tuple(torch.from_numpy(array) for array in batch)


def eager(
    case: Case, model: nn.Module, wrap: Callable[[nn.Module], Callable[..., Any]] | None = None
) -> Prepared:
    """The conversion of a batch, and the usual five lines as a function.

    Args:
        case: The case.
        model: Its model.
        wrap: What is put around the model.
    """
    optimizer = optimizer_of(torch.optim, case.optimizer, model)
    forward = wrap(model) if wrap else model

    def step(batch: tuple[torch.Tensor, ...]) -> float:
        optimizer.zero_grad()
        loss = forward(*batch)[0]
        loss.backward()
        optimizer.step()
        return loss.item()

    return to_torch, step


def compiled(case: Case, model: nn.Module) -> Prepared:
    """The same with ``torch.compile`` around the model; it needs a C++ compiler."""
    return eager(case, model, torch.compile)


def exported(case: Case, model: nn.Module) -> Any:
    """The model as ``torch.export`` has it, for the first batch."""
    return torch.export.export(model, to_torch(case.batches()[0]), strict=False)


def ddp(case: Case, model: nn.Module) -> Prepared:
    """The same with DistributedDataParallel; torch's default group is there."""
    return eager(case, model, DistributedDataParallel)
