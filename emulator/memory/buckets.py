"""Gradient buckets: flat device memory that holds several gradients one after the other.

A REDUCE step names the gradients of one bucket, in their order. The layout follows from that
alone: each gradient starts at a multiple of 64 bytes, gaps are zero. Gradients in a bucket have no
buffer of their own; their bucket's buffer comes after all regions in the pool.

A single replica has no buckets: it has nothing to reduce. They are made when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np

from emulator.dtypes import TO_NUMPY
from pef_schema.program import Program, SectionKind

ALIGNMENT = 64
"""Bytes at which a gradient starts: a cache line, and what zero-copy views ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Layout of the gradients of one REDUCE step.

    Args:
        index: Position among the buckets.
        name: Name of its section.
        step: ``(section, step)`` of its REDUCE step.
        regions: Gradient regions in order.
        offsets: Where each starts, in elements.
        shapes: Their shapes.
        size: Elements altogether, gaps included.
        dtype: Element type.
        home: Index of its buffer in the pool.
    """

    index: int
    name: str
    step: tuple[int, int]
    regions: tuple[int, ...]
    offsets: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    size: int
    dtype: np.dtype
    home: int


class BufferMap:
    """Map from each region to the buffer of the pool that holds it.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.regions = program.regions
        self.buckets: tuple[Bucket, ...] = ()
        self.place: dict[int, tuple[Bucket, int]] = {}
        self.count = len(program.regions)

    def use_buckets(self) -> None:
        """Let gradients lie in buckets from now on."""
        self.buckets = _layout(self._program)
        self.place = {
            region: (bucket, position)
            for bucket in self.buckets
            for position, region in enumerate(bucket.regions)
        }
        self.count = len(self.regions) + len(self.buckets)

    def home(self, region: int) -> int:
        """Index of the buffer that holds a region."""
        place = self.place.get(region)
        return region if place is None else place[0].home

    def bucket(self, home: int) -> Bucket | None:
        """The bucket that a buffer holds; None if the buffer holds a single region."""
        index = home - len(self.regions)
        return self.buckets[index] if index >= 0 else None

    def form(self, home: int) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a buffer."""
        bucket = self.bucket(home)
        if bucket is not None:
            return (bucket.size,), bucket.dtype
        return self.regions[home].shape, TO_NUMPY[self.regions[home].dtype]

    def first_region(self, home: int) -> int:
        """A region that a buffer holds."""
        bucket = self.bucket(home)
        return home if bucket is None else bucket.regions[0]


def _layout(program: Program) -> tuple[Bucket, ...]:
    buckets: list[Bucket] = []
    for s, section in enumerate(program.sections):
        for k, step in enumerate(section.steps):
            if step.kind is not SectionKind.REDUCE or not step.writes:
                continue
            regions = [program.regions[r] for r in step.writes]
            align = max(1, ALIGNMENT // regions[0].dtype.itemsize)
            offsets: list[int] = []
            size = 0
            for region in regions:
                offsets.append(size)
                count = region.nbytes // region.dtype.itemsize
                size += -(-count // align) * align
            buckets.append(
                Bucket(
                    index=len(buckets),
                    name=section.name,
                    step=(s, k),
                    regions=step.writes,
                    offsets=tuple(offsets),
                    shapes=tuple(region.shape for region in regions),
                    size=size,
                    dtype=TO_NUMPY[regions[0].dtype],
                    home=len(program.regions) + len(buckets),
                )
            )
    return tuple(buckets)


def unpack(bucket: Bucket, flat: jax.Array, regions: Iterable[int]) -> dict[int, jax.Array]:
    """Some of a bucket's gradients out of its flat array.

    Args:
        bucket: The bucket.
        flat: Its contents.
        regions: Which gradients.

    Returns:
        Arrays by region.
    """
    subset = set(regions)
    return {
        region: jax.lax.slice(flat, (start,), (start + math.prod(shape),)).reshape(shape)
        for region, start, shape in zip(bucket.regions, bucket.offsets, bucket.shapes, strict=True)
        if region in subset
    }


def pack(bucket: Bucket, flat: jax.Array, arrays: dict[int, jax.Array]) -> jax.Array:
    """A bucket's flat array with new gradients in it.

    Args:
        bucket: The bucket.
        flat: Its present contents.
        arrays: New gradients by region.

    Returns:
        The new contents.
    """
    # Written into donated memory, one after the other. To concatenate them is three times a whole
    # step of ResFFN: XLA:CPU makes one loop of it that looks for the right part at each element.
    for region, start in zip(bucket.regions, bucket.offsets, strict=True):
        if region in arrays:
            flat = jax.lax.dynamic_update_slice(flat, arrays[region].reshape(-1), (start,))
    return flat
