"""Tensors of a loaded program by name, as SambaTensors ask for them."""

from __future__ import annotations

from typing import NoReturn

import torch

from emulator.device import Device
from emulator.errors import DeviceError
from samba.distributed.replicas import Replicas
from samba.errors import NotCopyable
from samba.profiler import PROFILER
from samba.session.turns import Turns
from samba.tensor.views import read_as_numpy, view_as_torch


class LoadedTensors:
    """An open device's tensors by name.

    Args:
        device: The device.
        replicas: The replicas together with which tensors are set.
    """

    def __init__(self, device: Device, replicas: Replicas) -> None:
        self.device, self.replicas = device, replicas
        self.turns = Turns()

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """What is on the device stays there: neither ``copy`` nor ``pickle`` take it along."""
        raise NotCopyable(what="loaded program")

    def knows(self, name: str) -> bool:
        """Whether the program has a tensor of that name."""
        return self.device.knows(name)

    def has_grad(self, name: str) -> bool:
        """Whether the program has a gradient for it."""
        try:
            self.device.gradient_of(name)
        except DeviceError:
            return False
        return True

    def read(self, name: str) -> torch.Tensor:
        """A fresh copy of a tensor's device memory."""
        with self.turns.held(), self.replicas.getting_tensors():
            return view_as_torch(self.device.read(self.device.region_of(name)))

    def read_grad(self, name: str) -> torch.Tensor:
        """A fresh copy of its gradient."""
        with self.turns.held():
            return view_as_torch(self.device.read(self.device.gradient_of(name)))

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to the device."""
        region = self.device.region_of(name)
        with (
            self.turns.held(),
            self.replicas.same_values((region,)),
            PROFILER.event("PyRT_SET_TENSORS"),
        ):
            self.device.write(region, read_as_numpy(tensor, name), name=name)

    def write_grad(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to its gradient on the device."""
        region = self.device.gradient_of(name)
        values = read_as_numpy(tensor, f"{name}__grad")
        with self.turns.held():
            self.device.write(region, values, name=f"{name}__grad")
