"""Where the buffers of one program lie on its chips."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from emulator.memory.buckets import BufferMap
from emulator.mesh.chips import Chips

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What each chip has of each buffer.

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
