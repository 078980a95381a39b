"""The outputs that a call of ``session.run`` asks for, and copies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from emulator.device import Device
from samba.errors import ArgumentError, UnknownTensor
from samba.session.prepared_call import Fetches
from samba.session.request import listed
from samba.tensor.views import copy_as_torch, view_as_torch

__all__ = ["copier", "resolve_outputs"]


def copier(device: Device) -> Callable[[Any], torch.Tensor]:
    """How buffers of a device are copied to the host.

    Args:
        device: The device.

    Returns:
        A function of a buffer that gives a tensor with memory of its own.
    """
    chips = device.placement.chips
    if chips.processes is None:
        return copy_as_torch
    return lambda buffer: view_as_torch(chips.whole(buffer, "an output of session.run"))


def resolve_outputs(device: Device, outputs: Any) -> Fetches:
    """Find the regions of outputs.

    Args:
        device: The device that knows them.
        outputs: Tensors or their names, in a sequence or alone, as the script passed them.

    Returns:
        The region of each with its name.

    Raises:
        ArgumentError: If one is no tensor of the model.
        UnknownTensor: If the device has none of that name.
    """
    if outputs is None:
        return ()
    if isinstance(outputs, (torch.Tensor, str)):
        outputs = (outputs,)
    outputs = listed(outputs, "session.run(output_tensors=...)")
    return tuple([_resolve_output(device, i, output) for i, output in enumerate(outputs)])


def _resolve_output(device: Device, position: int, output: Any) -> tuple[int, str]:
    name = output if isinstance(output, str) else getattr(output, "sn_name", None)
    where = f"session.run(output_tensors[{position}])"
    if not isinstance(name, str):
        raise ArgumentError(
            where=where,
            found=f"a {type(output).__name__}",
            wanted="a SambaTensor of the traced model, such as those in model.output_tensors",
        )
    if not name or not device.knows(name):
        raise UnknownTensor(operation=where, name=name)
    return device.region_of(name), name
