"""Device memory as SambaTensors and optimizers see it: that of the program loaded last."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch

__all__ = ["DeviceTensors", "hide_memory", "show_memory", "visible_memory"]


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

    def write_grad(self, name: str, tensor: torch.Tensor, *, stays: bool = False) -> None:
        """Copy host values to its gradient on the device, for one run or for all that follow."""
        ...

    def optimizers_to_cpu(self, optimizer: torch.optim.Optimizer, /) -> None:
        """Copy an optimizer's state from the device to the host."""
        ...

    def optimizers_to_rdu(self, optimizer: torch.optim.Optimizer, /) -> None:
        """Copy an optimizer's state from the host to the device."""
        ...


_shown: list[weakref.ref[DeviceTensors]] = []
"""Memory of the loaded programs, one for each session that has one; the last counts."""


def visible_memory() -> DeviceTensors | None:
    """The memory that counts now, None before ``trace_graph``."""
    for shown in reversed(_shown):
        found = shown()
        if found is not None:
            return found
    return None


def show_memory(tensors: DeviceTensors) -> None:
    """Let SambaTensors see a program's memory, before that of other sessions.

    Args:
        tensors: The memory; it is not kept alive.
    """
    hide_memory(tensors)
    _shown.append(weakref.ref(tensors))


def hide_memory(tensors: DeviceTensors) -> None:
    """Let SambaTensors see a program's memory no longer; that of another session may return.

    Args:
        tensors: The memory; nothing happens if it is not seen.
    """
    _shown[:] = [shown for shown in _shown if shown() not in (None, tensors)]
