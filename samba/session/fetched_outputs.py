"""The outputs that a call of ``session.run`` asks for."""

from __future__ import annotations

from typing import Any

import torch

from emulator.device import Device
from samba.errors import ArgumentError, UnknownTensor
from samba.session.prepared_call import Fetches
from samba.session.request import listed

__all__ = ["resolve_outputs"]


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
