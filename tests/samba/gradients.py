"""A model with gradients of its own, trained by torch and on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba import utils
from samba.tracer import trace_cache
from tests.samba.worlds import close

STEPS = 3
LEVELS = ("o0", pytest.param("o1", marks=pytest.mark.slow), "o3")
"""How a model is cut into sections: one for each operation, for several, for all."""


class Base(nn.Module):
    """Three stages and a mean square; subclasses say what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.middle = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def between(self, h: torch.Tensor) -> torch.Tensor:
        return self.middle(h)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.last(self.between(self.first(x))) - y).square().mean()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(step)
    return torch.randn(6, 4, generator=chance), torch.randn(6, 4, generator=chance)


def given(step: int = 0) -> tuple[samba.SambaTensor, ...]:
    return tuple(samba.from_torch_tensor(t, name=n) for n, t in zip("xy", batch(step), strict=True))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def compiled(model: nn.Module, folder: Path, **config: Any) -> str:
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "net", **config}
    return samba.session.compile(model, given(), sgd(model), config_dict=config)


def follow_torch(
    make: Callable[[], nn.Module],
    folder: Path,
    level: str = "o3",
    prepare: Callable[[nn.Module], object] = lambda model: None,
) -> nn.Module:
    """Train both for some steps, and compare losses and weights.

    Args:
        make: Makes the model.
        folder: Where the PEF goes.
        level: How it is cut into sections.
        prepare: What is done to a model before it is compiled.

    Returns:
        The model on the device.
    """
    torch.manual_seed(1)
    host = make()
    torch.manual_seed(1)
    model = make()
    for each in (host, model):
        prepare(each)
    pef = compiled(model, folder, optim_level=level)
    if level == "o3":  # once a model: the trace of another process is that of the PEF
        trace_cache._kept.clear()
    host_optimizer, optimizer = sgd(host), sgd(model)
    utils.trace_graph(model, given(), optimizer, pef=pef)
    for step in range(STEPS):
        host_optimizer.zero_grad()
        loss = host(*batch(step))
        loss.backward()
        host_optimizer.step()
        close(samba.session.run(given(step), model.output_tensors)[0], loss.detach())
    samba.session.to_cpu(model)
    for path, weight in host.named_parameters():
        close(model.get_parameter(path), weight.detach(), path)
    return model
