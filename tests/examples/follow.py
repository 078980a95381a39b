"""Trains a model on the device and a copy of it with plain PyTorch, and compares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils

RTOL = 1e-4
"""Largest difference of a loss relative to itself, and of a weight relative to the largest
entry of its tensor: float32 rounding grows over 100 steps."""

Batch = tuple[torch.Tensor, ...]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def follow(
    folder: Path,
    *,
    model: nn.Module,
    names: Sequence[str],
    batches: Sequence[Batch],
    device_optimizer: MakeOptimizer,
    host_optimizer: MakeOptimizer,
    max_grad_norm: float | None = None,
) -> None:
    """Assert that the device and PyTorch stay together, step by step.

    Args:
        folder: Where the PEF goes.
        model: Model whose ``forward`` returns the loss first; its weights are the start of both.
        names: Names of its inputs.
        batches: One tuple of inputs per step, all of the same shapes.
        device_optimizer, host_optimizer: Make the two optimizers with the same settings.
        max_grad_norm: What the device's optimizer clips to.
    """
    host, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    host_optim = host_optimizer(host)

    def named(batch: Batch) -> tuple[samba.SambaTensor, ...]:
        return tuple(
            samba.from_torch_tensor(t, name=name, batch_dim=0)
            for t, name in zip(batch, names, strict=True)
        )

    samba.from_torch_model_(model)
    device_optim = device_optimizer(model)
    traced = named(batches[0])
    pef = samba.session.compile(
        model,
        traced,
        device_optim,
        name="followed",
        config_dict={"output_folder": str(folder), "pef_name": "followed"},
    )
    utils.trace_graph(model, traced, device_optim, pef=pef)

    for step, batch in enumerate(batches):
        loss = samba.session.run(input_tensors=named(batch), output_tensors=model.output_tensors)[0]
        host_optim.zero_grad()
        host_loss = host(*batch)[0]
        host_loss.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(host.parameters(), max_grad_norm)
        host_optim.step()
        ours, theirs = samba.to_torch(loss).item(), host_loss.item()
        assert abs(ours - theirs) <= RTOL * abs(theirs), (step, ours, theirs)

    samba.session.to_cpu(model)
    ours = {name: samba.to_torch(t).detach() for name, t in model.state_dict().items()}
    theirs = host.state_dict()
    assert ours.keys() == theirs.keys()
    far = {
        name: ((ours[name] - t).abs().max() / t.abs().max()).item()
        for name, t in theirs.items()
        if (ours[name] - t).abs().max() > RTOL * t.abs().max()
    }
    assert not far, far
    # Standing still is easy to follow.
    still = [
        name
        for name, t in host.named_parameters()
        if (t - start[name]).abs().max() < 10 * RTOL * t.abs().max()
    ]
    assert not still, still
