"""Device memory as a dict, for tests of what talks to a device."""

from __future__ import annotations

import torch


class FakeDevice:
    """``samba.tensor.device_memory.DeviceTensors`` over two dicts of plain tensors."""

    def __init__(self, values: dict[str, torch.Tensor], grads: dict[str, torch.Tensor]) -> None:
        self.values = values
        self.grads = grads

    def knows(self, name: str) -> bool:
        return name in self.values

    def has_grad(self, name: str) -> bool:
        return name in self.grads

    def read(self, name: str) -> torch.Tensor:
        return self.values[name].clone()

    def read_grad(self, name: str) -> torch.Tensor:
        return self.grads[name].clone()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        assert type(tensor) is torch.Tensor
        assert not tensor.requires_grad
        self.values[name] = tensor.clone()

    def write_grad(self, name: str, tensor: torch.Tensor, *, stays: bool = False) -> None:
        assert type(tensor) is torch.Tensor
        assert not tensor.requires_grad
        self.grads[name] = tensor.clone()
