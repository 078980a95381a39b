"""Device memory of a SambaTensor, found by its name: that of the program loaded last."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from samba.errors import ConversionError, NoGradient, NotTraced, UnknownTensor, described
from samba.support.given import flag_of
from samba.tensor.host_memory import HostMemory, plain
from samba.tensor.host_use import note_same, overwrite
from samba.tensor.views import data_of, host_of, readable, set_data


class DeviceTensors(Protocol):
    """What a SambaTensor needs of device memory, by the name of a tensor."""

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
    """The device memory that tensors see now; None before ``trace_graph``."""
    for reference in reversed(_shown):
        memory = reference()
        if memory is not None:
            return memory
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
    _shown[:] = [reference for reference in _shown if reference() not in (None, tensors)]


class DeviceMemory(HostMemory):
    """The part of SambaTensor that copies between host and device."""

    __slots__ = ()

    @property
    def sn_data(self) -> Tensor:
        """Device memory: reading copies it to a new plain tensor, assigning copies to the device.

        Raises:
            DeviceAccessError: Nothing is traced, or the device does not know the tensor.
        """
        device, name = self._on_device("sn_data")
        return device.read(name)

    @sn_data.setter
    def sn_data(self, value: Tensor) -> None:
        device, name = self._on_device("sn_data")
        device.write(name, _values(value, "sn_data", name))

    @property
    def sn_grad(self) -> Tensor:
        """Gradient in device memory: reading copies it to a new plain tensor, assigning copies to
        the device.

        Raises:
            DeviceAccessError: Nothing is traced, the device does not know the tensor, or the
                program keeps no gradient for it.
        """
        device, name = self._grad_on_device("sn_grad")
        return device.read_grad(name)

    @sn_grad.setter
    def sn_grad(self, value: Tensor) -> None:
        device, name = self._grad_on_device("sn_grad")
        device.write_grad(name, _values(value, "sn_grad", f"{name}__grad"))

    def rdu(self) -> None:
        """Copies the values, and the gradient if there is one, from the host to the device.

        Raises:
            DeviceAccessError: Nothing is traced, or the device does not know the tensor.
        """
        device, name = self._on_device("rdu()")
        self.materialize_()
        device.write(name, data_of(host_of(self)))  # not `data`, which is a use of host memory
        note_same(self)
        grad = self.grad
        if grad is not None and device.has_grad(name):
            device.write_grad(name, grad)

    def cpu(self, inplace: bool = False) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # SambaFlow gives cpu() another meaning than torch
        """Copies the values, and the gradient if there is one, from the device to the host.

        Torch's own functions, such as ``module.cpu()``, want a tensor of it, and get the tensor
        itself: with the device's values if the device has it, and as it is otherwise.

        Args:
            inplace: Whether to write into the present host memory, so that tensors that share it
                see the new values, instead of taking new memory.

        Returns:
            None; the tensor has the new values. ``torch()`` or ``data`` give them.

        Raises:
            ArgumentError: ``inplace`` is neither true nor false.
            DeviceAccessError: Nothing is traced, or the device does not know the tensor.
        """
        inplace = flag_of(inplace, "SambaTensor.cpu(inplace=...)")
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            if self._sn_name and visible_memory() is not None:
                self._fetch("cpu()", inplace)
            return self  # pyright: ignore[reportReturnType]  # what torch.Tensor.cpu() gives
        self._fetch("cpu()", inplace)

    def cpu_(self) -> None:
        """Copies the values, and the gradient if there is one, from the device into the present
        host memory.

        Raises:
            DeviceAccessError: Nothing is traced, or the device does not know the tensor.
        """
        self._fetch("cpu_()", inplace=True)

    def _fetch(self, operation: str, inplace: bool) -> None:
        device, name = self._on_device(operation)
        values = device.read(name)
        if inplace and self._has_data:
            overwrite(self, values)
        else:
            self._take(values.to(self.dtype))
        note_same(self)
        if self.requires_grad and self.is_leaf and device.has_grad(name):
            grad, fetched = self.grad, device.read_grad(name)
            if inplace and grad is not None:
                grad.copy_(fetched)
            else:
                self.grad = fetched.to(self.dtype)

    def _take(self, values: Tensor) -> None:
        """Go on with new host memory; the tensor that it was made from keeps the old."""
        if "_underlying" in vars(self):
            values.requires_grad_(self.requires_grad and self.is_leaf)
            vars(self)["_underlying"] = values
            set_data(self, values.detach())
        else:
            self.data = values

    def _on_device(self, operation: str) -> tuple[DeviceTensors, str]:
        device = visible_memory()
        if device is None:
            raise NotTraced(operation=operation, name=self._sn_name)
        for name in (self._sn_name, self._sn_region_name):
            if name and device.knows(name):
                return device, name
        raise UnknownTensor(operation=operation, name=self._sn_name)

    def _grad_on_device(self, operation: str) -> tuple[DeviceTensors, str]:
        device, name = self._on_device(operation)
        if not device.has_grad(name):
            raise NoGradient(operation=operation, name=name)
        return device, name


def _values(value: Any, operation: str, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ConversionError(
            where=f"{operation} = ...", found=described(value), wanted="a torch.Tensor"
        )
    values = value.torch_tensor() if isinstance(value, HostMemory) else value
    return plain(readable(values, name)).detach()
