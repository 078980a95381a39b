"""The door to the device: what SambaTensors and optimizers see of the program that is loaded."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["DeviceTensors", "close_door", "device", "open_door"]


class DeviceTensors(Protocol):
    """Device memory by tensor name, as SambaTensors see it."""

    def knows(self, name: str) -> bool:
        """Whether the device holds a tensor of that name."""
        ...

    def has_grad(self, name: str) -> bool:
        """Whether the device holds a gradient for it."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A fresh copy of a tensor's device memory."""
        ...

    def read_grad(self, name: str) -> torch.Tensor:
        """A fresh copy of its gradient."""
        ...

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to the device."""
        ...

    def write_grad(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to its gradient on the device."""
        ...

    def optimizers_to_cpu(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy an optimizer's state from the device to the host."""
        ...

    def optimizers_to_rdu(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy an optimizer's state from the host to the device."""
        ...


_current: list[DeviceTensors] = []


def device() -> DeviceTensors | None:
    """Device memory as it is now, None before ``trace_graph``."""
    return _current[-1] if _current else None


def open_door(tensors: DeviceTensors) -> None:
    """Make device memory known to SambaTensors, in the place of what was known before.

    Args:
        tensors: The memory of the program that was loaded last.
    """
    _current[:] = [tensors]


def close_door(tensors: DeviceTensors | None = None) -> None:
    """Make no device memory known.

    Args:
        tensors: Whose door to close: another one that has been opened since stays open. None
            closes any.
    """
    if tensors is None or tensors is device():
        _current.clear()
