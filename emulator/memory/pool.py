"""Device memory: one buffer per region, with byte accounting."""

from __future__ import annotations

import jax
import numpy as np

from emulator.memory.buckets import BufferMap
from pef_schema.program import Role


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

    def live_bytes(self) -> dict[Role, int]:
        """Bytes held now, by role; roles without data are left out."""
        totals: dict[Role, int] = {}
        for home, buffer in enumerate(self.buffers):
            if buffer is not None:
                role = self._map.regions[self._map.first_region(home)].role
                totals[role] = totals.get(role, 0) + buffer.nbytes
        return totals

    def capacity_bytes(self) -> int:
        """Bytes of all regions together."""
        return sum(region.nbytes for region in self._map.regions)
