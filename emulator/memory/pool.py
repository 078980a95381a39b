"""Device memory: one buffer per region."""

from __future__ import annotations

import jax
import numpy as np

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
