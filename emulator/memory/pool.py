"""Device memory: one buffer per region, where each lies on the chips, and which were lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import jax
import numpy as np

from emulator.errors import LostMemory
from emulator.memory.buckets import BufferMap
from emulator.mesh.chips import Chips
from emulator.start import refuse_in_child
from pef_schema.program import Program, Role


class BufferPool:
    """Buffers by region index, then those of buckets; None where there is no data.

    ``buffers`` is a plain list, because the run loop indexes it: nothing on the
    hot path goes through a method of this class. Input regions may hold numpy
    arrays, which an executable takes as they are.

    Args:
        buffer_map: Which buffers there are.
    """

    __slots__ = ("_map", "buffers")

    def __init__(self, buffer_map: BufferMap) -> None:
        self._map = buffer_map
        self.buffers: list[jax.Array | np.ndarray | None] = [None] * buffer_map.count

    def grow(self) -> None:
        """Make room for buffers that the memory has got since."""
        self.buffers.extend([None] * (self._map.count - len(self.buffers)))

    def put(self, home: int, array: jax.Array | np.ndarray) -> None:
        """Place a buffer; the old one is freed when nobody else holds it."""
        self.buffers[home] = array

    def drop(self, home: int) -> None:
        """Free a buffer."""
        self.buffers[home] = None


class UnreachablePool(BufferPool):
    """What a device has in the place of its memory in a forked child: every use is refused.

    Args:
        pool: The memory, which is kept: freeing it would need the threads of the parent.
    """

    __slots__ = ("_kept",)

    def __init__(self, pool: BufferPool) -> None:
        self._kept = pool

    @property
    def buffers(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]  # nothing is read or set here
        """Raises ``ForkedProcess``."""
        refuse_in_child("device memory")
        raise AssertionError


_KEPT = frozenset({Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE, Role.SEED})
"""Roles of regions that no run computes again."""


class LostBuffers:
    """The buffers of a pool whose contents are lost.

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        pool: The buffers.
    """

    __slots__ = ("_lost", "_map", "_pool", "_program")

    def __init__(self, program: Program, buffer_map: BufferMap, pool: BufferPool) -> None:
        self._program, self._map, self._pool = program, buffer_map, pool
        self._lost: frozenset[int] = frozenset()

    def __contains__(self, home: int) -> bool:
        return home in self._lost and self._pool.buffers[home] is None

    def find(self, *, wait: bool) -> list[int]:
        """After an error: empty the buffers that were consumed, or whose run has failed.

        Args:
            wait: Whether to wait for runs under way, and look whether they fail.

        Returns:
            The buffers. Those that a run leaves for a later one are not lost: it can run again.
        """
        buffers = self._pool.buffers
        gone = [home for home, buffer in enumerate(buffers) if _is_gone(buffer, wait=wait)]
        for home in gone:
            buffers[home] = None
        durable = {home for home in gone if not self._role(home).is_transient}
        self._lost = frozenset(durable | {home for home in self._lost if buffers[home] is None})
        return gone

    def among(self, homes: Iterable[int]) -> list[int]:
        """Those of some buffers that are lost."""
        return [home for home in homes if home in self] if self._lost else []

    def all(self) -> list[int]:
        """The buffers that are lost, and were not written again since."""
        return self.among(sorted(self._lost))

    def error(self, homes: Iterable[int]) -> LostMemory:
        """The error that names buffers; first those that no run computes again."""
        ordered = sorted(homes, key=lambda home: self._role(home) not in _KEPT)
        regions = [self._program.regions[self._map.first_region(home)] for home in ordered]
        return LostMemory(
            names=[region.name for region in regions],
            roles=[region.role.name.lower().replace("_", " ") for region in regions],
        )

    def _role(self, home: int) -> Role:
        return self._program.regions[self._map.first_region(home)].role


def _is_gone(buffer: jax.Array | np.ndarray | None, *, wait: bool) -> bool:
    """Whether an array was consumed, or is the result of a run that failed."""
    if not isinstance(buffer, jax.Array):
        return False
    if wait and not buffer.is_deleted():
        try:
            buffer.block_until_ready()
        except RuntimeError:
            return True
    return buffer.is_deleted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The part of each buffer that each chip holds.

    Args:
        buffer_map: Which buffers hold which regions.
        chips: The chips.
    """

    buffer_map: BufferMap
    chips: Chips

    def axis(self, home: int) -> int:
        """The axis along which chips divide a buffer; -1 where each has the whole, as of a bucket.

        Args:
            home: The buffer.
        """
        if self.buffer_map.bucket(home) is not None:
            return -1
        region = self.buffer_map.regions[home]
        return self.chips.axis(region.role, region.shape)

    def sharding(self, home: int) -> jax.sharding.Sharding:
        """The same in jax's words.

        Args:
            home: The buffer.
        """
        return self.chips.sharding(self.axis(home))
