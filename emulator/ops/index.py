"""Lowerings: reading by index, embedding tables included."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import widen
from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import broadcast_to, constant
from emulator.ops._reduction import normalize_axis
from emulator.ops.moments import vector_norm
from emulator.ops.registry import op
from pef_schema.errors import SambaError

Indices = tuple[jax.Array | None, ...]


_read = partial(op, moves=True, repeats=True, fusing=Fusing.APART, ranges=("first",))


class DataDependentIndex(SambaError):
    """An index whose result has a shape that depends on data."""

    deviation = "data-dependent-index"

    def __init__(self, *, op: str, found: str, hint: str) -> None:
        self.op, self.found, self.hint = op, found, hint
        super().__init__(
            f"{op}: found {found}, whose result has a shape that depends on the data; "
            f"shapes must be known when the model is compiled. {hint}"
        )


def in_bounds(index: jax.Array, size: int) -> jax.Array:
    """Count negative indices from the end."""
    return jnp.where(index < 0, index + size, index)


def is_mask(index: jax.Array) -> bool:
    """Whether torch takes an index tensor as a mask."""
    return index.dtype in (np.bool_, np.uint8)


@_read("aten.index.Tensor", reads=(1,), indices="each_dim")
@op("aten._unsafe_index.Tensor", reads=(1,), moves=True, repeats=True)
def index(x: jax.Array, indices: Indices) -> jax.Array:
    """Advanced indexing by integer tensors; ``None`` keeps a dimension."""
    if any(i is not None and is_mask(i) for i in indices):
        raise DataDependentIndex(
            op="aten.index.Tensor",
            found="a boolean mask as index",
            hint="Use torch.where or masked_fill, or select with integer indices.",
        )
    return x.at[index_key(x, indices)].get(mode="promise_in_bounds", wrap_negative_indices=False)


def index_key(x: jax.Array, indices: Indices) -> tuple[Any, ...]:
    """Integer indices, counted from the start, as a numpy-style key."""
    return tuple(
        slice(None) if i is None else in_bounds(i, x.shape[d]) for d, i in enumerate(indices)
    )


@_read("aten.index_select.default", reads=(2,), indices="along", elements="chosen")
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Slices of one dimension in the order of an index."""
    if x.ndim == 0:
        return x
    axis = normalize_axis(dim, x.ndim)
    return take_slices(x, index.reshape(-1), axis)


def take_slices(x: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """``x[..., index, ...]`` for indices known to be in bounds."""
    key = (slice(None),) * axis + (index,)
    return x.at[key].get(mode="promise_in_bounds", wrap_negative_indices=False)


@_read("aten.gather.default", reads=(2,), indices="along", elements="chosen")
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    """One entry along a dimension for every entry of the index."""
    del sparse_grad
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    return x.at[gather_key(index, normalize_axis(dim, x.ndim), x.ndim)].get(
        mode="promise_in_bounds", wrap_negative_indices=False
    )


def gather_key(index: jax.Array, axis: int, ndim: int) -> tuple[jax.Array, ...]:
    """Coordinates that ``gather`` and ``scatter`` with this index touch."""
    index = index.reshape(index.shape or (1,) * ndim)
    return tuple(
        index if d == axis else lax.broadcasted_iota(index.dtype, index.shape, d)
        for d in range(ndim)
    )


@_read("aten.take.default", reads=(1,), indices="flat")
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """Elements of the flattened tensor."""
    return take_slices(x.reshape(-1), in_bounds(index, x.size), 0)


@_read("aten.take_along_dim.default", reads=(1,), indices="flat_only")
def take_along_dim(x: jax.Array, indices: jax.Array, dim: int | None = None) -> jax.Array:
    """One entry along a dimension for every entry of the index, after broadcasting.

    torch takes indices along a dimension modulo its size, as many times as it fits.
    """
    if dim is None:
        return take(x, indices.reshape(-1))
    axis = dim % x.ndim
    rest = [
        (1, 1) if d == axis else (a, b)
        for d, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    common = [jnp.broadcast_shapes((a,), (b,))[0] for a, b in rest]
    sizes = [x.shape[d] if d == axis else n for d, n in enumerate(common)]
    index_sizes = [indices.shape[d] if d == axis else n for d, n in enumerate(common)]
    index = jnp.mod(broadcast_to(indices, index_sizes), x.shape[axis])
    return gather(broadcast_to(x, sizes), axis, index)


@op("aten._unsafe_masked_index.default", reads=(1, 2), moves=True)
def masked_index(x: jax.Array, mask: jax.Array, indices: Indices, fill: float) -> jax.Array:
    """Indexed entries where the mask holds, else ``fill``; indices beside it may be wild.

    Of no entries all are ``fill``, as in torch.
    """
    safe = tuple(None if i is None else jnp.where(mask, i, 0) for i in indices)
    if not x.size:
        named = [i is not None for i in indices] + [False] * (x.ndim - len(indices))
        sizes = [max(n, 1) if at else n for n, at in zip(x.shape, named, strict=True)]
        entries = index(jnp.zeros(sizes, x.dtype), safe)
        return jnp.full(entries.shape, constant(fill, x.dtype))
    entries = index(x, safe)
    return jnp.where(mask, entries, constant(fill, x.dtype))


@op("aten.nonzero_static.default", differentiable=False, cheap=False, moves=True, complex=False)
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """Coordinates of the first ``size`` nonzero elements; ``fill_value`` where there are fewer."""
    if x.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    places = jnp.nonzero(x, size=size, fill_value=fill_value)
    return jnp.stack(places, axis=1).astype(np.int64)


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
    values = jnp.take_along_axis(rows, first, axis=0)
    chosen = jnp.where(empty, 0, indices[first])
    return jnp.where(empty, 0, values), chosen


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
    return _renorm(float(max_norm), float(norm_type), weight, indices)


@with_gradient(
    lambda max_norm, norm_type, saved, g: (g, None), saves=lambda *_: None, static=(0, 1)
)
def _renorm(max_norm: float, norm_type: float, weight: jax.Array, indices: jax.Array) -> jax.Array:
    flat = indices.reshape(-1)
    rows = take_slices(weight, flat, 0)
    norm = vector_norm(rows, norm_type, 1, True).astype(jnp.float64)
    wide = widen(rows)
    scale = (max_norm / (norm + _ROUND)).astype(wide.dtype)
    short = jnp.where(norm > max_norm, wide * scale, wide).astype(weight.dtype)
    # A row that is named twice is written twice, with the same numbers.
    return weight.at[flat].set(short)
