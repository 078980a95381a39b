"""A layer to derive models from whose ``forward`` changes something, compiled and run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import samba
from samba import utils


class Layer(nn.Module):
    """A linear layer; what is derived from it scales the result."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return self.lin(x)


def given() -> samba.SambaTensor:
    return samba.from_torch_tensor(torch.linspace(-1, 1, 6).reshape(2, 3), name="x")


def compiled(model: nn.Module, folder: Path) -> str:
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "net"}
    return samba.session.compile(model, given(), inference=True, config_dict=config)


def assert_as_torch(model: nn.Module, pef: str, *, calls: int = 1) -> None:
    """A first run gives what calls of the model on the host give."""
    outputs = utils.trace_graph(model, given(), pef=pef)
    found = samba.session.run(given(), outputs)[0].torch()
    for _ in range(calls):
        torch.testing.assert_close(found, model(given()).torch().detach())
