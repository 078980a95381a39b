"""The chips that a program runs on: one of jax's devices, or several as one mesh.

The chips of a mesh may be those of several processes. Each of these sees its own parts of an array
alone: what the host reads is then gathered, and what it writes is the same in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from emulator.errors import DeviceError
from emulator.mesh.layout import Split, split_axis
from emulator.start import HOST_PLATFORMS, chips_from_first, first_device
from pef_schema.program import Role

T = TypeVar("T")

_AXIS = "chips"
_READ_AFTER_RUNS = frozenset({Role.OUTPUT})
"""What scripts fetch after each run: every process has to have the whole."""


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
            f"--n-chips: found {found} {platform} device(s) in this process, expected {wanted}. "
            f"{hint}"
        )


class Processes(Protocol):
    """The processes that have the chips of one mesh, an equal number each.

    All of them run the same program on the same values. Each call here is made by all of them, at
    the same point of their programs; who is elsewhere is an error that every one of them raises.

    Attributes:
        rank: Number of this process.
        size: How many processes there are.
    """

    rank: int
    size: int

    def run(self, operation: str, do: Callable[[], T], values: Mapping[str, np.ndarray]) -> T:
        """Do one part of an operation in which every process does a part.

        Args:
            operation: What it is, for errors; the same in all processes.
            do: This process's part; on return nothing of it is under way.
            values: Those that it takes from the host, by name. They must be the same everywhere.

        Returns:
            What ``do`` returns.
        """
        ...

    def same(self, operation: str, array: np.ndarray) -> np.ndarray:
        """The values that the first process has.

        Args:
            operation: What they are for.
            array: Those of this process, which may be overwritten; of one form everywhere.

        Returns:
            An array of the same shape and dtype.
        """
        ...

    def gather(self, operation: str, part: np.ndarray) -> np.ndarray:
        """The parts of all processes.

        Args:
            operation: What they are for.
            part: That of this process; of one form everywhere.

        Returns:
            An array with one more axis in front, of the processes in the order of their ranks.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Where a program runs.

    Args:
        devices: jax's devices, one or more.
        split: What is divided among them.
        processes: The processes that have them; None if they are this process's own.

    Example:
        >>> one_chip().count
        1
    """

    devices: tuple[Any, ...]
    split: Split = Split.NONE
    processes: Processes | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices)

    @property
    def first(self) -> Any:
        """The first of this process's: all are of its platform and have as much memory."""
        if self.processes is None:
            return self.devices[0]
        return self.devices[self.processes.rank * self.count // self.processes.size]

    @property
    def whole_roles(self) -> frozenset[Role]:
        """Roles of regions that every chip has as a whole, whatever is divided."""
        return frozenset() if self.processes is None else _READ_AFTER_RUNS

    def axis(self, role: Role, shape: Sequence[int]) -> int:
        """The axis of a region along which they divide it, -1 where each has the whole.

        Args:
            role: Why the region exists.
            shape: Its shape.
        """
        if role in self.whole_roles:
            return -1
        return split_axis(role, shape, self.split, self.count)

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

    def put(self, array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        """Take an array that nobody else will change to the chips; of 64-bit types as jax is set.

        Args:
            array: The array; with several processes that of the first one counts.
            sharding: Where its parts go.
        """
        if self.processes is None:
            return jax.device_put(array, sharding)
        form = f"shape {list(array.shape)} {array.dtype.name}"
        same = self.processes.same(f"writing device memory of {form}", array)
        # Not device_put: it would compare the values once more, by a collective of its own.
        return jax.make_array_from_callback(array.shape, sharding, same.__getitem__)

    def whole(self, array: jax.Array | np.ndarray, name: str) -> np.ndarray:
        """A copy on the host of an array, from all chips that have a part of it.

        Args:
            array: The array; one of the host is copied.
            name: What it is, for errors.
        """
        if (
            self.processes is None
            or not isinstance(array, jax.Array)
            or array.is_fully_addressable
            or array.is_fully_replicated
        ):
            return np.array(array, copy=True)
        axis, own = _own_part(array)
        parts = self.processes.gather(f"reading {name}", own)
        return np.concatenate([*parts], axis)


def _own_part(array: jax.Array) -> tuple[int, np.ndarray]:
    """The axis along which an array is divided, and what this process has of it."""
    shards = array.addressable_shards
    shape = shards[0].data.shape
    axis = next(i for i, n in enumerate(array.shape) if shape[i] != n)
    shards = sorted(shards, key=lambda shard: shard.index[axis].start or 0)
    return axis, np.concatenate([np.asarray(shard.data) for shard in shards], axis)


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


def open_chips(count: int, split: Split, processes: Processes | None = None) -> Chips:
    """Some of this process's devices as one; starts jax if nothing has started it yet.

    On the CPU a chip is a part of the host: jax makes as many as are asked for when it starts.

    Args:
        count: How many, 1 or more; with several processes a multiple of their number.
        split: What is divided among them.
        processes: Those that have them, an equal number each; None for this process's own.

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
    own = count if processes is None else count // processes.size
    devices = chips_from_first(own)
    if len(devices) < own:
        raise NotEnoughChips(found=len(devices), wanted=own, platform=devices[0].platform)
    if processes is not None:
        by_id: dict[int, Any] = {device.id: device for device in jax.devices()}
        numbers = processes.gather("opening chips", np.array([device.id for device in devices]))
        devices = [by_id[int(number)] for number in numbers.reshape(-1)]
    return Chips(devices=tuple(devices), split=split, processes=processes)
