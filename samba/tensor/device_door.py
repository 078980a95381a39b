"""What is on the device now: the door that SambaTensors and the session go through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from samba.session.profiling import PROFILER
from samba.tensor.views import view_as_numpy, view_as_torch

if TYPE_CHECKING:
    from emulator.device import Device
    from samba.distributed.replicas import Replicas


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


class Memory:
    """:class:`DeviceTensors` over an open device."""

    replicas: Replicas

    def __init__(self, device: Device) -> None:
        self._device = device

    def knows(self, name: str) -> bool:
        """Whether the program has a tensor of that name."""
        return self._device.knows(name)

    def has_grad(self, name: str) -> bool:
        """Whether the program has a gradient for it."""
        from emulator.errors import DeviceError

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


_current: list[DeviceTensors] = []


def device() -> DeviceTensors | None:
    """Device memory as it is now, None before ``trace_graph``."""
    return _current[-1] if _current else None


def set_device(tensors: DeviceTensors | None) -> None:
    """Make device memory known to SambaTensors, or close it with None."""
    _current[:] = [] if tensors is None else [tensors]
