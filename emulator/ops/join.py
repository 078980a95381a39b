"""Lowerings: joining, splitting and selecting along a dimension."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from emulator.errors import OpLimit
from emulator.kernels.slices import strided
from emulator.ops._promote import result_type
from emulator.ops.registry import Channels, op

Size = tuple[int, ...]
Arrays = tuple[jax.Array, ...]

_MOST_PIECES = 2**9
"""Of one tensor: every piece is a kernel of its own, and XLA takes about 10 ms to compile one."""


def _check_pieces(count: int) -> None:
    if count > _MOST_PIECES:
        raise OpLimit(argument="the number of pieces", found=count, most=_MOST_PIECES)


def _cat_last(tensors: Arrays, dim: int = 0) -> jax.Array:
    """:func:`cat` of tensors of one rank that are channels last."""
    rank = max(x.ndim for x in tensors)
    dim = dim % rank
    return cat(tensors, dim if dim == 0 else (dim - 2) % (rank - 1) + 1)


@op(
    *("aten.cat.default", "aten.concat.default", "aten.concatenate.default"),
    channels=Channels.ANY,
    last=_cat_last,
    moves=True,
    ranges=("join",),
    elements="all",
)
def cat(tensors: Arrays, dim: int = 0) -> jax.Array:
    """Joined along a dimension; an empty 1-d tensor among larger ones is left out."""
    dtype = result_type(*tensors)
    rank = max(x.ndim for x in tensors)
    parts = [x.astype(dtype) for x in tensors if x.ndim == rank or x.shape != (0,)]
    return lax.concatenate(parts, dim % rank)


@op("aten.stack.default", "aten._stack.default", moves=True, ranges=("join",), elements="all")
def stack(tensors: Arrays, dim: int = 0) -> jax.Array:
    """Joined along a new dimension."""
    return cat(tuple(lax.expand_dims(x, (dim % (x.ndim + 1),)) for x in tensors), dim)


@op(
    *("aten.split.Tensor", "aten.split.default", "aten.unsafe_split.Tensor"),
    "aten.split_copy.Tensor",
    moves=True,
    elements="first",
)
def split(x: jax.Array, split_size: int | Size, dim: int = 0) -> Arrays:
    """Pieces of one size (the last may be smaller) or of the sizes listed."""
    if not isinstance(split_size, int):
        return split_with_sizes(x, split_size, dim)
    size = x.shape[dim]
    if size == 0:
        return (x,)
    starts = range(0, size, split_size)
    _check_pieces(len(starts))
    return split_with_sizes(x, tuple(min(split_size, size - s) for s in starts), dim)


@op(
    *("aten.split_with_sizes.default", "aten.split.sizes"),
    *("aten.unsafe_split_with_sizes.default", "aten.split_with_sizes_copy.default"),
    moves=True,
    elements="first",
)
def split_with_sizes(x: jax.Array, sizes: Size, dim: int = 0) -> Arrays:
    """Pieces of the sizes listed."""
    _check_pieces(len(sizes))
    ends = np.cumsum(sizes, dtype=np.int64)
    return tuple(
        lax.slice_in_dim(x, int(end) - n, int(end), axis=dim)
        for n, end in zip(sizes, ends, strict=True)
    )


@op("aten.chunk.default", "aten.unsafe_chunk.default", moves=True, elements="first")
def chunk(x: jax.Array, chunks: int, dim: int = 0) -> Arrays:
    """At most ``chunks`` pieces of one size (the last may be smaller); of nothing, all empty."""
    if x.shape[dim] == 0:
        _check_pieces(chunks)
        return (x,) * chunks
    return split(x, max(-(-x.shape[dim] // chunks), 1), dim)


@op("aten.unbind.int", "aten.unbind_copy.int", moves=True, elements="first")
def unbind(x: jax.Array, dim: int = 0) -> Arrays:
    """Every slice along a dimension."""
    _check_pieces(x.shape[dim])
    return tuple(select(x, dim, i) for i in range(x.shape[dim]))


@op("aten.select.int", "aten.select_copy.int", moves=True, elements="first")
def select(x: jax.Array, dim: int, index: int) -> jax.Array:
    """One slice along a dimension."""
    return lax.index_in_dim(x, index % x.shape[dim], axis=dim, keepdims=False)


@op("aten.slice.Tensor", "aten.slice_copy.Tensor", moves=True, elements="first")
def slice_(
    x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    """A range along a dimension; ends out of range are clipped."""
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return strided(x, first, max(first, last), step, dim)


@op("aten.narrow.default", "aten.narrow_copy.default", moves=True, elements="first")
def narrow(x: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    """``length`` entries from ``start`` along a dimension."""
    first = start % max(x.shape[dim], 1) if start < 0 else start
    return lax.slice_in_dim(x, first, first + length, axis=dim)


@op("aten.tensor_split.sections", "aten.tensor_split.indices", moves=True, elements="first")
def tensor_split(x: jax.Array, sections: int | Size, dim: int = 0) -> Arrays:
    """Near-equal pieces, or pieces cut before each index."""
    if isinstance(sections, int):
        _check_pieces(sections)
        whole, extra = divmod(x.shape[dim], sections)
        return split_with_sizes(x, tuple(whole + (i < extra) for i in range(sections)), dim)
    _check_pieces(len(sections) + 1)
    cuts = [slice(None, c).indices(x.shape[dim])[1] for c in sections]
    bounds = zip([0, *cuts], [*cuts, x.shape[dim]], strict=True)
    return tuple(slice_(x, dim, start, end) for start, end in bounds)


@op("aten.hsplit.int", "aten.hsplit.array", moves=True, elements="first")
def hsplit(x: jax.Array, sections: int | Size) -> Arrays:
    """Split along the second dimension, or the only one."""
    return tensor_split(x, sections, 0 if x.ndim == 1 else 1)


@op("aten.vsplit.int", "aten.vsplit.array", moves=True, elements="first")
def vsplit(x: jax.Array, sections: int | Size) -> Arrays:
    """Split along the first dimension."""
    return tensor_split(x, sections, 0)


@op("aten.dsplit.int", "aten.dsplit.array", moves=True, elements="first")
def dsplit(x: jax.Array, sections: int | Size) -> Arrays:
    """Split along the third dimension."""
    return tensor_split(x, sections, 2)


def _at_least(x: jax.Array, rank: int) -> jax.Array:
    """Dimensions of size 1 added as ``atleast_1d``, ``_2d`` and ``_3d`` do."""
    if x.ndim == 0:
        return x.reshape((1,) * rank)
    if rank >= 2 and x.ndim == 1:
        x = x[None, :]
    return x[..., None] if rank == 3 and x.ndim == 2 else x


@op("aten.atleast_1d.default", view=True)
def atleast_1d(x: jax.Array) -> jax.Array:
    """At least one dimension."""
    return _at_least(x, 1)


@op("aten.atleast_2d.default", view=True)
def atleast_2d(x: jax.Array) -> jax.Array:
    """At least two dimensions."""
    return _at_least(x, 2)


@op("aten.atleast_3d.default", view=True)
def atleast_3d(x: jax.Array) -> jax.Array:
    """At least three dimensions."""
    return _at_least(x, 3)


@op("aten.hstack.default", moves=True, elements="all")
def hstack(tensors: Arrays) -> jax.Array:
    """Joined along the second dimension, or the only one."""
    parts = tuple(_at_least(x, 1) for x in tensors)
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


@op("aten.vstack.default", "aten.row_stack.default", moves=True, elements="all")
def vstack(tensors: Arrays) -> jax.Array:
    """Joined along the first dimension."""
    return cat(tuple(_at_least(x, 2) for x in tensors), 0)


@op("aten.dstack.default", moves=True, elements="all")
def dstack(tensors: Arrays) -> jax.Array:
    """Joined along the third dimension."""
    return cat(tuple(_at_least(x, 3) for x in tensors), 2)


@op("aten.column_stack.default", moves=True, elements="all")
def column_stack(tensors: Arrays) -> jax.Array:
    """Vectors as columns, joined with matrices."""
    return cat(tuple(x.reshape((x.size, 1)) if x.ndim < 2 else x for x in tensors), 1)
