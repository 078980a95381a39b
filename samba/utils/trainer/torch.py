"""A plain training loop on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from samba.sambatensor import to_torch

__all__ = ["train"]


def train(
    model: torch.nn.Module,
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    epochs: int = 1,
    loss_index: int = 0,
) -> list[float]:
    """Trains a model with torch, as the reference of :func:`samba.utils.trainer.samba.train`.

    Args:
        model: A model whose ``forward`` returns a loss, or a tuple with one.
        batches: Lists, tuples or dicts of its inputs.
        optimizer: The optimizer.
        epochs: Passes over the batches.
        loss_index: Which result is the loss.

    Returns:
        Mean loss of each epoch.
    """
    means = []
    for _ in range(epochs):
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            results = model(**batch) if isinstance(batch, Mapping) else model(*batch)
            loss = results[loss_index] if isinstance(results, (tuple, list)) else results
            loss = to_torch(loss).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        means.append(torch.stack(losses).mean().item() if losses else float("nan"))
    return means
