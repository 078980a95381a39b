"""Bagua tensors over device memory: closures of regions, found by name in each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from samba.tensor.views import view_as_numpy, view_as_torch

if TYPE_CHECKING:
    from emulator.device import Device  # it loads jax, which a torch training loop does not need


@dataclass(frozen=True, slots=True)
class RegionGetter:
    """Getter closure: a copy of a region, as it is when the run that writes it is done.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    copies: ClassVar[bool] = True
    device: Device
    name: str

    def __call__(self, proxy: Any) -> torch.Tensor:
        return view_as_torch(self.device.read(self.device.region_of(self.name)))


@dataclass(frozen=True, slots=True)
class RegionSetter:
    """Setter closure: copies values to a region.

    A gradient in a bucket is written in place: between the backward pass and the optimizer nobody
    else uses it. Any other region gets new memory, so a run that still reads the old one may.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    device: Device
    name: str

    def __call__(self, proxy: Any, values: torch.Tensor) -> None:
        device = self.device
        region = device.region_of(self.name)
        array = view_as_numpy(values.reshape(device.program.regions[region].shape))
        device.overwrite(region, array, name=self.name)


def region_closures(device: Device, name: str) -> tuple[RegionGetter, RegionSetter]:
    """Getter and setter closures of a region.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.

    Returns:
        What ``ensure_bagua_tensor`` takes.

    Raises:
        UnknownName: If the device knows no such name.
    """
    device.region_of(name)
    return RegionGetter(device, name), RegionSetter(device, name)
