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


_open: list[DeviceTensors] = []
"""Memory of the loaded programs, one for each session that has one; the last counts."""


def device() -> DeviceTensors | None:
    """Device memory as it is now, None before ``trace_graph``."""
    return _open[-1] if _open else None


def open_door(tensors: DeviceTensors) -> None:
    """Make device memory known to SambaTensors, before that of other sessions.

    Args:
        tensors: The memory of a program that was loaded.
    """
    close_door(tensors)
    _open.append(tensors)


def close_door(tensors: DeviceTensors) -> None:
    """Make device memory known no longer; that of another session may be seen again.

    Args:
        tensors: The memory; nothing happens if it is not known.
    """
    _open[:] = [other for other in _open if other is not tensors]
