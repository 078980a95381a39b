"""A plain training loop on the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from samba.sambatensor import to_torch
from samba.session.process import session

__all__ = ["train"]


def train(
    model: torch.nn.Module,
    batches: Iterable[Any],
    hyperparam_dict: Mapping[str, float] | None = None,
    epochs: int = 1,
    loss_index: int = 0,
    outputs: Sequence[Any] | None = None,
) -> list[float]:
    """Trains a traced model.

    Args:
        model: The model, after ``trace_graph``.
        batches: Batches for ``session.run``, such as a ``SambaLoader``.
        hyperparam_dict: As for ``session.run``.
        epochs: Passes over the batches.
        loss_index: Which output is the loss.
        outputs: Outputs to fetch, those of the model if None.

    Returns:
        Mean loss of each epoch.

    Raises:
        SambaError: Nothing is traced, or a batch does not fit.
    """
    handles = model.output_tensors if outputs is None else outputs
    means = []
    for _ in range(epochs):
        losses = [
            to_torch(session.run(batch, handles, hyperparam_dict or {})[loss_index]).mean()
            for batch in batches
        ]
        means.append(torch.stack(losses).mean().item() if losses else float("nan"))
    return means
