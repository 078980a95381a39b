"""Buckets: gradients that are reduced together, after the last backward section that writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.program import DType
from samba.compiler.placed import PlacedGraph
from samba.compiler.regions import RegionTable
from samba.distributed.settings import DEFAULT_BUCKET_BYTES

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small, so that the network starts early in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A gradient to reduce.

    Args:
        region: Its region.
        nbytes: Its size.
        dtype: Its element type.
        section: Forward section whose mirror is the last to write it.
    """

    region: int
    nbytes: int
    dtype: DType
    section: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Gradients of one dtype that are reduced together.

    Args:
        regions: Their regions, ascending.
        section: Forward section after whose mirror all of them are there.
    """

    regions: tuple[int, ...]
    section: int


def gradient_buckets(
    placed: PlacedGraph, table: RegionTable, limit: int
) -> tuple[GradientBucket, ...]:
    """Put the gradients of a graph's weights into buckets.

    Args:
        placed: The graph with all its regions.
        table: Where their sizes stand.
        limit: Bytes that a bucket may hold.

    Returns:
        Buckets in the order in which they are full.
    """
    gradients = [
        Gradient(
            region=grad,
            nbytes=table.regions[grad].nbytes,
            dtype=table.regions[grad].dtype,
            section=placed.last_writers[weight],
        )
        for grad, weight in sorted(placed.weight_gradients().items())
    ]
    return plan_buckets(gradients, limit=limit)


def plan_buckets(
    gradients: Sequence[Gradient],
    *,
    limit: int = DEFAULT_BUCKET_BYTES,
    first: int = FIRST_BUCKET_BYTES,
) -> tuple[GradientBucket, ...]:
    """Put gradients into buckets, in the order in which the backward pass finishes them.

    Args:
        gradients: Gradients in that order.
        limit: Bytes that a bucket may hold; one gradient that is larger has a bucket of its own.
        first: Bytes that the first bucket may hold.

    Returns:
        Buckets in the order in which they are full.

    Example:
        >>> gradients = [
        ...     Gradient(region=r, nbytes=40, dtype=DType.FLOAT32, section=3 - r) for r in range(4)
        ... ]
        >>> [b.regions for b in plan_buckets(gradients, limit=80, first=40)]
        [(0,), (1, 2), (3,)]
    """
    full: list[GradientBucket] = []
    filling: dict[DType, list[Gradient]] = {}
    started = 0

    def finish(members: list[Gradient]) -> None:
        full.append(
            GradientBucket(
                regions=tuple(sorted(g.region for g in members)),
                section=min(g.section for g in members),
            )
        )

    limits: dict[DType, int] = {}
    for gradient in gradients:
        members = filling.get(gradient.dtype)
        size = sum(g.nbytes for g in members or ())
        if members and size + gradient.nbytes > limits[gradient.dtype]:
            finish(members)
            members = None
        if not members:
            members = filling[gradient.dtype] = []
            limits[gradient.dtype] = min(first, limit) if started == 0 else limit
            started += 1
        members.append(gradient)
    for members in filling.values():
        if members:
            finish(members)
    return tuple(sorted(full, key=lambda b: -b.section))
