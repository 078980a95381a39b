"""Device memory: one buffer per region, with byte accounting."""

from __future__ import annotations

import jax
import numpy as np

from pef_schema.program import Program, Role


class BufferPool:
    """Buffers by region index; None where a region holds no data.

    ``buffers`` is a plain list, because the run loop indexes it: nothing on the
    hot path goes through a method of this class. Input regions may hold numpy
    arrays, which an executable takes as they are.

    Args:
        program: The program whose regions are held.
    """

    __slots__ = ("_program", "buffers")

    def __init__(self, program: Program) -> None:
        self._program = program
        self.buffers: list[jax.Array | np.ndarray | None] = [None] * len(program.regions)

    def put(self, region: int, array: jax.Array | np.ndarray) -> None:
        """Place a buffer; the old one is freed when nobody else holds it."""
        self.buffers[region] = array

    def drop(self, region: int) -> None:
        """Free a region's buffer."""
        self.buffers[region] = None

    def live_bytes(self) -> dict[Role, int]:
        """Bytes held now, by role; roles without data are left out."""
        totals: dict[Role, int] = {}
        for region, buffer in zip(self._program.regions, self.buffers, strict=True):
            if buffer is not None:
                totals[region.role] = totals.get(region.role, 0) + region.nbytes
        return totals

    def capacity_bytes(self) -> int:
        """Bytes of all regions together."""
        return sum(region.nbytes for region in self._program.regions)
