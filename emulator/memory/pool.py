"""Device memory: one buffer per region."""

from __future__ import annotations

from typing import NoReturn

import jax
import numpy as np

from emulator.forks import refuse_in_child
from emulator.memory.buckets import BufferMap


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
