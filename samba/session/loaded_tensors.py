"""Tensors of a loaded program by name, as SambaTensors ask for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

import torch

from emulator.device import Device
from emulator.errors import DeviceError
from samba.distributed.replicas import Replicas
from samba.errors import NotCopyable
from samba.profiler import PROFILER
from samba.session.given_values import fitting
from samba.session.turns import Turns
from samba.support.deviations import Deviations
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
        self._deviations = Deviations()

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
        tensor = self._fitting(tensor, region, name)
        with (
            self.turns.held(),
            self.replicas.same_values((region,)),
            PROFILER.event("PyRT_SET_TENSORS"),
        ):
            self.device.write(region, read_as_numpy(tensor, name), name=name)

    def write_grad(self, name: str, tensor: torch.Tensor, *, stays: bool = False) -> None:
        """Copy host values to its gradient on the device.

        Args:
            name: Name of the tensor.
            tensor: The values.
            stays: Whether they are meant for all runs that follow, if it is an output.
        """
        region, where = self.device.gradient_of(name), f"{name}__grad"
        values = read_as_numpy(self._fitting(tensor, region, where), where)
        with self.turns.held():
            self.device.write(region, values, name=where)
            self.note_gradients((region,), stays=stays)

    def note_gradients(self, regions: Collection[int], *, stays: bool) -> None:
        """Take note that gradients were set, perhaps of outputs.

        Args:
            regions: Their regions.
            stays: Whether they are meant for all runs that follow.
        """

    def _fitting(self, tensor: torch.Tensor, region: int, name: str) -> torch.Tensor:
        """A tensor in the type of its region, told once if it is cast."""
        target = self.device.program.regions[region]
        return fitting(tensor, target, name=name, deviations=self._deviations)
