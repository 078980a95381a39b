"""Gradients into the flat array of their bucket, and out of it."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from emulator.memory.buckets import Bucket


def unpack(bucket: Bucket, flat: jax.Array, regions: Iterable[int]) -> dict[int, jax.Array]:
    """Some of a bucket's gradients out of its flat array.

    Args:
        bucket: The bucket.
        flat: Its contents.
        regions: Which gradients.

    Returns:
        Arrays by region.
    """
    wanted = set(regions)
    return {
        region: jax.lax.slice(flat, (start,), (start + _count(shape),)).reshape(shape)
        for region, start, shape in zip(bucket.regions, bucket.offsets, bucket.shapes, strict=True)
        if region in wanted
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


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
