"""Lowerings: histograms of one and several variables. Torch gives them no gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.dtypes import FROM_NUMPY
from emulator.ops._reduction import reduce_all
from emulator.ops._reshape import rows_of
from emulator.ops.creation import linspace
from emulator.ops.registry import op

Range = Sequence[float] | None


def _ends(x: jax.Array, range: Range, axis: int) -> tuple[Any, Any]:
    """The outer edges of the bins of one variable: what is asked for, or the data's own."""
    if range is not None:
        low, high = range[2 * axis], range[2 * axis + 1]
        low, high = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    elif x.size == 0:
        low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    else:
        low, high = jnp.min(x), jnp.max(x)
    flat = low == high
    half = np.asarray(0.5, x.dtype)
    return jnp.where(flat, low - half, low), jnp.where(flat, high + half, high)


def _edges(x: jax.Array, bins: int, range: Range, axis: int) -> jax.Array:
    low, high = _ends(x, range, axis)
    return linspace(low, high, bins + 1, dtype=FROM_NUMPY[np.dtype(x.dtype)])


def _count(
    points: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool
) -> jax.Array:
    """How many points (or what weight) each cell holds; the last bin includes its end.

    Args:
        points: ``(samples, variables)``.
        edges: Increasing edges per variable.
        weight: One per sample.
        density: Divide by the total and by the volume of each cell.
    """
    sizes = tuple(e.shape[0] - 1 for e in edges)
    place = jnp.zeros(points.shape[0], np.int64)
    inside = jnp.ones(points.shape[0], bool)
    for d, edge in enumerate(edges):
        values = points[:, d]
        inside &= (values >= edge[0]) & (values <= edge[-1])
        cell = jnp.searchsorted(edge, values, side="right").astype(np.int64) - 1
        place = place * sizes[d] + jnp.clip(cell, 0, sizes[d] - 1)
    share = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1)
    share = jnp.where(inside, share, 0).astype(points.dtype)
    counts = jnp.zeros(math.prod(sizes), points.dtype).at[place].add(share).reshape(sizes)
    if not density:
        return counts
    result = counts / reduce_all(counts)
    for d, edge in enumerate(edges):
        width = (edge[1:] - edge[:-1]).reshape([-1 if a == d else 1 for a in range(len(sizes))])
        result = result / width
    return result


@op("aten.histogram.bin_ct", differentiable=False, counted=False)
def histogram_count(
    x: jax.Array,
    bins: int = 100,
    *,
    range: Range = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """How many elements fall into each of equal bins, and the edges of the bins."""
    flat = x.reshape(-1)
    edges = _edges(flat, bins, range, 0)
    return _count(flat[:, None], (edges,), weight, density), edges


@op("aten.histogram.bins_tensor", differentiable=False, counted=False)
def histogram_edges(
    x: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    """How many elements fall between given edges, and the edges."""
    return _count(x.reshape(-1, 1), (bins,), weight, density), bins


@op("aten._histogramdd_bin_edges.default", differentiable=False, counted=False)
def histogramdd_edges(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, ...]:
    """Edges of equal bins for each of the variables in the last dimension."""
    del weight, density
    points = rows_of(x)
    return tuple(_edges(points[:, d], n, range, d) for d, n in enumerate(bins))


@op("aten._histogramdd_from_bin_cts.default", differentiable=False, counted=False)
def histogramdd_count(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """How many points fall into each cell of an even grid; variables in the last dimension."""
    return _count(rows_of(x), histogramdd_edges(x, bins, range=range), weight, density)


@op("aten._histogramdd_from_bin_tensors.default", differentiable=False, counted=False)
def histogramdd_between(
    x: jax.Array,
    bins: Sequence[jax.Array],
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """How many points fall into each cell between given edges."""
    return _count(rows_of(x), bins, weight, density)
