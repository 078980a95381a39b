"""The chips that a program runs on: one of jax's devices, or several as one mesh."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from emulator.errors import DeviceError
from emulator.mesh.layout import Split
from emulator.start import HOST_PLATFORMS, chips_from_first, first_device

__all__ = ["Chips", "NotEnoughChips", "one_chip", "open_chips"]

_AXIS = "chips"


class NotEnoughChips(DeviceError):
    """This process sees fewer devices than the program was to run on."""

    def __init__(self, *, found: int, wanted: int, platform: str) -> None:
        self.found, self.wanted, self.platform = found, wanted, platform
        if platform in HOST_PLATFORMS:
            hint = (
                "jax had been started before the number was known: set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted} in the environment."
            )
        else:
            hint = f"Take --n-chips {found}, or JAX_PLATFORMS=cpu for chips of the host."
        super().__init__(
            f"--n-chips: found {found} {platform} device(s) in this process, wanted {wanted}. "
            f"{hint}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Where a program runs.

    Args:
        devices: jax's devices, one or more.
        split: What is divided among them.

    Example:
        >>> one_chip().count
        1
    """

    devices: tuple[Any, ...]
    split: Split = Split.NONE

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices)

    @property
    def first(self) -> Any:
        """The first of them: all are of its platform and have as much memory."""
        return self.devices[0]

    @property
    def waits(self) -> bool:
        """Whether a run has to end before the next one starts.

        XLA's CPU client runs each chip's part of an executable on a thread of one pool, where a
        collective waits for the others. With two runs under way threads of the second may keep the
        last part of the first from ever starting, and the process is aborted.
        """
        return self.count > 1 and self.first.platform in HOST_PLATFORMS

    def sharding(self, axis: int) -> jax.sharding.Sharding:
        """jax's word for a region divided along an axis.

        Args:
            axis: The axis; -1 for one that every chip has as a whole.
        """
        return _sharding(self.devices, axis)


@functools.cache
def _sharding(devices: tuple[Any, ...], axis: int) -> jax.sharding.Sharding:
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    parts: Sequence[Any] = () if axis < 0 else (*[None] * axis, _AXIS)
    return NamedSharding(_mesh(devices), PartitionSpec(*parts))


@functools.cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,))


def one_chip() -> Chips:
    """The device that programs run on; starts jax if nothing has started it yet.

    Raises:
        ForkedProcess: In a process that was forked while a device was open.
        NoDevice: If jax has none of the platforms that it was asked for.

    Example:
        >>> one_chip().split.value
        'none'
    """
    return Chips(devices=(first_device(),))


def open_chips(count: int, split: Split) -> Chips:
    """Some of this process's devices as one; starts jax if nothing has started it yet.

    On the CPU a chip is a part of the host: jax makes as many as are asked for when it starts.

    Args:
        count: How many, 1 or more.
        split: What is divided among them.

    Raises:
        NotEnoughChips: If this process does not see so many.
        ForkedProcess: In a process that was forked while a device was open.
        NoDevice: If jax has none of the platforms that it was asked for.

    Example:
        >>> open_chips(1, Split.WEIGHT) == one_chip()
        True
    """
    if count == 1 or split is Split.NONE:
        return one_chip()
    found = chips_from_first(count)
    if len(found) < count:
        raise NotEnoughChips(found=len(found), wanted=count, platform=found[0].platform)
    return Chips(devices=tuple(found), split=split)
