"""Tensors of a loaded program by name, as SambaTensors ask for them."""

from __future__ import annotations

from typing import Protocol

import torch

from emulator.device import Device
from emulator.errors import DeviceError
from samba.distributed.replicas import Replicas
from samba.profiler import PROFILER
from samba.tensor.views import view_as_numpy, view_as_torch


class OptimizerStates(Protocol):
    """Copies of optimizer state between host and device."""

    def optimizers_to_cpu(self, optims: object, *, operation: str) -> None:
        """Copy state to the host; ``operation`` is who asks, for errors."""
        ...

    def optimizers_to_rdu(self, optims: object, *, operation: str) -> None:
        """Copy state to the device; ``operation`` is who asks, for errors."""
        ...


class LoadedTensors:
    """:class:`samba.tensor.device_door.DeviceTensors` over an open device.

    Args:
        device: The device.
        states: Who knows the optimizers that the device runs.
    """

    replicas: Replicas

    def __init__(self, device: Device, states: OptimizerStates) -> None:
        self._device, self._states = device, states

    def knows(self, name: str) -> bool:
        """Whether the program has a tensor of that name."""
        return self._device.knows(name)

    def has_grad(self, name: str) -> bool:
        """Whether the program has a gradient for it."""
        try:
            self._device.gradient_of(name)
        except DeviceError:
            return False
        return True

    def read(self, name: str) -> torch.Tensor:
        """A fresh copy of a tensor's device memory."""
        with PROFILER.event("PyRT_GET_TENSORS"):
            return view_as_torch(self._device.read(self._device.region_of(name)))

    def read_grad(self, name: str) -> torch.Tensor:
        """A fresh copy of its gradient."""
        return view_as_torch(self._device.read(self._device.gradient_of(name)))

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to the device."""
        region = self._device.region_of(name)
        with self.replicas.same_values((region,)), PROFILER.event("PyRT_SET_TENSORS"):
            self._device.write(region, view_as_numpy(tensor), name=name)

    def write_grad(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to its gradient on the device."""
        region = self._device.gradient_of(name)
        self._device.write(region, view_as_numpy(tensor), name=f"{name}__grad")

    def optimizers_to_cpu(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy an optimizer's state from the device to the host."""
        self._states.optimizers_to_cpu(optimizer, operation="optimizers_to_cpu()")

    def optimizers_to_rdu(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy an optimizer's state from the host to the device."""
        self._states.optimizers_to_rdu(optimizer, operation="optimizers_to_rdu()")
