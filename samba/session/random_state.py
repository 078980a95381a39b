"""Where the device's random streams stand, for checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pef_schema.program import ArginKind
from samba.errors import ArgumentError, described

if TYPE_CHECKING:
    from emulator.device import Device

__all__ = ["random_state", "set_random_state"]

_BITS = 2**32


def _streams(device: Device) -> list[int]:
    argins = enumerate(device.program.argins)
    return [index for index, argin in argins if argin.kind is ArginKind.DROPOUT_SEED]


def random_state(device: Device) -> torch.Tensor:
    """Seed and position of each stream.

    Args:
        device: The device; its runs are waited for.

    Returns:
        int64 ``(streams, 2)``; ``(0, 2)`` of a program without random numbers. It is the same on
        every replica: what each draws follows from its rank, too.
    """
    rows = []
    for index in _streams(device):
        region = device.program.argins[index].region
        rows.append([int(device.argin(index)), int(device.read(region)[1])])
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)


def set_random_state(device: Device, state: Any) -> None:
    """Let streams go on from an earlier state.

    Args:
        device: The device; nothing changes there if this raises.
        state: What :func:`random_state` has given.

    Raises:
        ArgumentError: If it is not the state of a program with as many streams.
    """
    streams = _streams(device)
    good = (
        isinstance(state, torch.Tensor)
        and state.dtype == torch.int64
        and tuple(state.shape) == (len(streams), 2)
        and bool(((state >= 0) & (state < _BITS)).all())
    )
    if not good:
        raise ArgumentError(
            where="session.set_rng_state(state)",
            found=described(state),
            wanted=f"int64 [{len(streams)}, 2] as session.get_rng_state() gives: seeds and "
            "positions of 32 bits",
        )
    for index, (seed, position) in zip(streams, state.tolist(), strict=True):
        device.set_argin(index, float(seed))
        region = device.program.argins[index].region
        key = device.read(region)[0]  # the seed's, for this replica
        device.write(region, np.array([key, position], np.uint32))
