"""Lowerings: embedding tables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import widen
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops.index import DataDependentIndex, take_slices
from emulator.ops.moments import vector_norm
from emulator.ops.registry import op


@op(
    "aten.one_hot.default",
    differentiable=False,
    moves=True,
    complex=False,
    indices="classes",
    ranges=("constantly", 0, 1),
)
def one_hot(x: jax.Array, num_classes: int = -1) -> jax.Array:
    """1 at the class, 0 elsewhere, along a new last dimension, as int64."""
    if num_classes < 0:
        raise DataDependentIndex(
            op="aten.one_hot.default",
            found="no num_classes",
            hint="Give num_classes.",
        )
    classes = lax.iota(x.dtype, num_classes)
    return (jnp.expand_dims(x, -1) == classes).astype(np.int64)


@op(
    "aten.embedding.default",
    reads=(1,),
    moves=True,
    repeats=True,
    fusing=Fusing.APART,
    indices="rows",
    ranges=("first",),
)
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """Rows of a table; the row ``padding_idx`` gets no gradient."""
    del sparse
    rows = take_slices(weight, indices, 0)
    if padding_idx >= 0:
        pad = jnp.expand_dims(indices == padding_idx, -1)
        rows = jnp.where(pad, lax.stop_gradient(rows), rows)
    if scale_grad_by_freq:
        flat = indices.reshape(-1)
        counts = jnp.zeros(weight.shape[0], np.int32).at[flat].add(1)
        rows = _shrink_gradient(rows, jnp.expand_dims(take_slices(counts, indices, 0), -1))
    return rows


@with_gradient(
    lambda counts, g: ((g / counts).astype(g.dtype), None), saves=lambda _y, _rows, counts: counts
)
def _shrink_gradient(rows: jax.Array, counts: jax.Array) -> jax.Array:
    del counts
    return rows


_SUM, _MAX = 0, 2


@op(
    *("aten.embedding_bag.default", "aten.embedding_bag.padding_idx"),
    reads=(0, 1, 2, 6),
    flops=("bag",),
    indices="bags",
)
def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """See :func:`embedding_bag_plain`; a negative ``padding_idx`` counts from the end."""
    return embedding_bag_plain(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        -1 if padding_idx is None else padding_idx % weight.shape[0],
    )


@op("aten._embedding_bag.default", reads=(0, 1, 2, 6), flops=("bag",), indices="bags")
def embedding_bag_plain(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Sum, mean or maximum of the rows of each bag.

    Args:
        weight: Table, (rows, width).
        indices: All bags' row numbers one after another.
        offsets: Where each bag begins.
        scale_grad_by_freq: Divide the gradient of a row by how often it is read.
        mode: 0 sum, 1 mean, 2 maximum.
        sparse: Ignored: gradients are dense.
        per_sample_weights: Factor of every row read; sum only.
        include_last_offset: Whether ``offsets`` ends with the number of indices.
        padding_idx: A row that counts for nothing, if not negative.

    Returns:
        Bags (number of bags, width), the bag of each index (nothing where torch adds the rows up
        without asking for it), the size of each bag without padding (zeros for sums), and the row
        of each maximum (the sizes again for other modes).
    """
    count, width = indices.shape[0], weight.shape[1]
    bags = offsets.shape[0] - int(include_last_offset)
    starts = offsets[:bags]
    place = lax.iota(starts.dtype, count)
    bag = jnp.searchsorted(starts, place, side="right").astype(indices.dtype) - 1
    real = jnp.ones(count, bool) if padding_idx < 0 else indices != padding_idx
    rows = embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
    sizes = jnp.zeros(bags, indices.dtype).at[bag].add(real.astype(indices.dtype))
    if mode == _MAX:
        out, chosen = _bag_maximum(rows, indices, bag, real, bags)
        return out, bag, sizes, chosen
    rows = widen(rows)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None].astype(rows.dtype)
    rows = jnp.where(real[:, None], rows, 0)
    out = jnp.zeros((bags, width), rows.dtype).at[bag].add(rows)
    if mode == _SUM:
        sizes = jnp.zeros_like(sizes)
        if padding_idx < 0 and weight.dtype != np.float64:
            bag = bag[:0]
    else:
        out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    return out.astype(weight.dtype), bag, sizes, sizes


def _bag_maximum(
    rows: jax.Array, indices: jax.Array, bag: jax.Array, real: jax.Array, bags: int
) -> tuple[jax.Array, jax.Array]:
    """Maximum of each bag and its row; NaN wins; the first of equals gets the gradient."""
    count, width = rows.shape
    fixed = lax.stop_gradient(jnp.where(real[:, None], rows, -jnp.inf))
    top = jnp.full((bags, width), -jnp.inf, rows.dtype).at[bag].max(fixed)
    hit = ((fixed == top[bag]) | (fixed != fixed)) & real[:, None]
    place = lax.broadcasted_iota(np.int32, rows.shape, 0)
    last = jnp.full((bags, width), count, np.int32)
    first = last.at[bag].min(jnp.where(hit, place, np.int32(count)))
    empty = first == count
    first = jnp.where(empty, 0, first)
    found = jnp.take_along_axis(rows, first, axis=0)
    chosen = jnp.where(empty, 0, indices[first])
    return jnp.where(empty, 0, found), chosen


_ROUND = 1e-7
"""What torch adds to a norm before it divides by it."""


@op("samba.embedding_renorm.default", reads=(), flops=("renorm",), indices="rows")
def embedding_renorm(
    weight: jax.Array, indices: jax.Array, max_norm: float, norm_type: float
) -> jax.Array:
    """The table with no row among those of ``indices`` longer than ``max_norm``.

    Torch changes the table behind the gradient, which is that of the table as it went in.

    Args:
        weight: Table, (rows, width).
        indices: Row numbers of any shape; other rows stay as they are.
        max_norm: The longest that a row may be.
        norm_type: Which norm, as for ``linalg_vector_norm``.
    """
    return _renormed(float(max_norm), float(norm_type), weight, indices)


@with_gradient(
    lambda max_norm, norm_type, saved, g: (g, None), saves=lambda *_: None, static=(0, 1)
)
def _renormed(
    max_norm: float, norm_type: float, weight: jax.Array, indices: jax.Array
) -> jax.Array:
    flat = indices.reshape(-1)
    rows = take_slices(weight, flat, 0)
    norm = vector_norm(rows, norm_type, 1, True).astype(jnp.float64)
    wide = widen(rows)
    scale = (max_norm / (norm + _ROUND)).astype(wide.dtype)
    short = jnp.where(norm > max_norm, wide * scale, wide).astype(weight.dtype)
    # A row that is named twice is written twice, with the same numbers.
    return weight.at[flat].set(short)
