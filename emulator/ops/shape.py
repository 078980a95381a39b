"""Lowerings: views, joins and splits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.ops._promote import broadcast_all, broadcast_to, is_complex, real_type
from emulator.ops._reduction import normalize_axis
from emulator.ops._reshape import merged, reshaped
from emulator.ops.registry import op
from pef_schema.program import DType

Size = tuple[int, ...]


@op(
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
    "aten.alias_copy.default",
    moves=True,
    elements="same",
)
@op(
    *("aten.alias.default", "aten.contiguous.default", "aten.lift_fresh.default"),
    *("aten.lift.default", "aten.positive.default", "aten._lazy_clone.default"),
    *("aten.resolve_conj.default", "aten.resolve_neg.default", "aten.pin_memory.default"),
    view=True,
    elements="same",
)
def clone(x: jax.Array) -> jax.Array:
    """The tensor itself: device values never change in place."""
    return x


@op("aten.detach.default", "aten.data.default", differentiable=False, view=True, elements="same")
@op("aten.detach_copy.default", differentiable=False, moves=True, elements="same")
def detach(x: jax.Array) -> jax.Array:
    """The tensor, cut off from the gradient."""
    return lax.stop_gradient(x)


@op(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    view=True,
    elements="first",
)
@op("aten.view_copy.default", "aten._reshape_copy.default", moves=True, elements="first")
def view(x: jax.Array, size: Size) -> jax.Array:
    """Another shape; one size may be -1."""
    return reshaped(x, _sizes(x.size, size))


@op("aten.view_as.default", "aten.reshape_as.default", view=True)
def view_as(x: jax.Array, other: jax.Array) -> jax.Array:
    """The shape of another tensor."""
    return reshaped(x, other.shape)


@op("aten._reshape_alias.default", view=True)
@op("aten._reshape_alias_copy.default", moves=True)
def reshape_alias(x: jax.Array, size: Size, stride: Size) -> jax.Array:
    """Another shape of a contiguous tensor; the strides say nothing more."""
    del stride
    return reshaped(x, tuple(size))


@op("aten.view.dtype", differentiable=False, view=True)
@op("aten.view_copy.dtype", differentiable=False, moves=True)
def view_dtype(x: jax.Array, dtype: DType) -> jax.Array:
    """The same bytes as another dtype; the last dimension scales with the item size."""
    old, new = np.dtype(x.dtype), TO_NUMPY[dtype]
    if is_complex(old) or is_complex(new):
        return _complex_bits(x, new)
    if np.bool_ in (old, new):
        return lax.convert_element_type(_bits(x, np.dtype(np.uint8)), new)
    return _bits(x, new)


@op("aten.flatten.using_ints", view=True, elements="first")
def flatten(x: jax.Array, start_dim: int = 0, end_dim: int = -1) -> jax.Array:
    """Merge the dimensions ``start_dim`` to ``end_dim``."""
    if x.ndim == 0:
        return reshaped(x, (1,))
    first, last = start_dim % x.ndim, end_dim % x.ndim
    merged = int(np.prod(x.shape[first : last + 1]))
    return reshaped(x, (*x.shape[:first], merged, *x.shape[last + 1 :]))


@op("aten.unflatten.int", view=True, elements="first")
def unflatten(x: jax.Array, dim: int, sizes: Size) -> jax.Array:
    """Split one dimension into several; one size may be -1."""
    dim %= x.ndim
    return reshaped(x, (*x.shape[:dim], *_sizes(x.shape[dim], sizes), *x.shape[dim + 1 :]))


@op("aten.ravel.default", view=True, elements="first")
def ravel(x: jax.Array) -> jax.Array:
    """One dimension."""
    return reshaped(x, (x.size,))


@op("aten.permute.default", "aten.permute_copy.default", moves=True, elements="first")
def permute(x: jax.Array, dims: Size) -> jax.Array:
    """Dimensions in another order."""
    return lax.transpose(x, tuple(d % x.ndim for d in dims))


@op(
    *("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default"),
    "aten.transpose_copy.int",
    moves=True,
    elements="first",
)
def transpose(x: jax.Array, dim0: int, dim1: int) -> jax.Array:
    """Two dimensions swapped."""
    order = list(range(max(x.ndim, 1)))
    a, b = normalize_axis(dim0, x.ndim), normalize_axis(dim1, x.ndim)
    order[a], order[b] = order[b], order[a]
    return lax.transpose(x, order) if x.ndim else x


@op("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default", moves=True, elements="first")
def t(x: jax.Array) -> jax.Array:
    """A matrix transposed; a vector stays."""
    return lax.transpose(x, tuple(reversed(range(x.ndim))))


@op("aten.mT.default", moves=True, elements="first")
def matrix_transpose(x: jax.Array) -> jax.Array:
    """The last two dimensions swapped; a number stays."""
    return jnp.swapaxes(x, -1, -2) if x.ndim else x


@op(
    *("aten.movedim.int", "aten.moveaxis.int", "aten.movedim.intlist"),
    "aten.moveaxis.intlist",
    moves=True,
    elements="first",
)
def movedim(x: jax.Array, source: int | Size, destination: int | Size) -> jax.Array:
    """Dimensions moved to new places."""
    return jnp.moveaxis(x, source, destination)


@op("aten.unsqueeze.default", view=True, elements="first")
@op("aten.unsqueeze_copy.default", moves=True, elements="first")
def unsqueeze(x: jax.Array, dim: int) -> jax.Array:
    """A new dimension of size 1."""
    return lax.expand_dims(x, (dim % (x.ndim + 1),))


@op("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", view=True, elements="first")
@op(
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    moves=True,
    elements="first",
)
def squeeze(x: jax.Array, dim: int | Size | None = None) -> jax.Array:
    """Without dimensions of size 1, all or those named."""
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = {normalize_axis(d, x.ndim) for d in dims} if x.ndim else set()
    return lax.squeeze(x, sorted(a for a in axes if x.shape[a] == 1))


@op("aten.expand.default", view=True, repeats=True, elements="first")
@op("aten.expand_copy.default", moves=True, repeats=True, elements="first")
def expand(x: jax.Array, size: Size, *, implicit: bool = False) -> jax.Array:
    """Broadcast; -1 keeps a size."""
    del implicit
    lead = len(size) - x.ndim
    return broadcast_to(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(size)])


@op("aten.expand_as.default", view=True, repeats=True)
def expand_as(x: jax.Array, other: jax.Array) -> jax.Array:
    """Broadcast to the shape of another tensor."""
    return broadcast_to(x, other.shape)


@op("aten.broadcast_to.default", view=True, repeats=True, elements="first")
def broadcast(x: jax.Array, size: Size) -> jax.Array:
    """Broadcast; -1 keeps a size."""
    return expand(x, size)


@op("aten.broadcast_tensors.default", view=True, elements="all")
def broadcast_tensors(tensors: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """All tensors in their common shape."""
    return tuple(broadcast_all(*tensors))


@op("aten.meshgrid.default", "aten.meshgrid.indexing", moves=True)
def meshgrid(tensors: tuple[jax.Array, ...], *, indexing: str = "ij") -> tuple[jax.Array, ...]:
    """Coordinate grids of 1-d (or 0-d) tensors."""
    lines = [x.reshape(-1) for x in tensors]
    sizes = tuple(x.size for x in lines)
    grids = []
    for axis, line in enumerate(lines):
        shape = tuple(n if i == axis else 1 for i, n in enumerate(sizes))
        grid = broadcast_to(line.reshape(shape), sizes)
        swap = indexing == "xy" and len(sizes) > 1
        grids.append(jnp.swapaxes(grid, 0, 1) if swap else grid)
    return tuple(grids)


def _sizes(total: int, size: Size) -> Size:
    """Resolve a -1."""
    if -1 not in size:
        return tuple(size)
    known = -int(np.prod(size))
    return tuple((total // known if known else 0) if n == -1 else n for n in size)


def _complex_bits(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """:func:`_bits` from or to complex numbers, which are two numbers each."""
    if x.dtype == dtype:
        return x
    row = x.reshape((*x.shape[:-1], -1)) if x.ndim else x.reshape((1,))
    if is_complex(row.dtype):
        row = jnp.stack([row.real, row.imag], axis=-1).reshape((*row.shape[:-1], -1))
    row = _bits(row, real_type(dtype))
    if is_complex(dtype):
        row = lax.complex(row[..., 0::2], row[..., 1::2])
    return row if x.ndim else row.reshape(())


def _bits(x: jax.Array, dtype: np.dtype) -> jax.Array:
    old = np.dtype(x.dtype)
    if old == np.bool_:
        x, old = x.astype(np.uint8), np.dtype(np.uint8)
    if old.itemsize < dtype.itemsize:
        ratio = dtype.itemsize // old.itemsize
        x = x.reshape((*x.shape[:-1], x.shape[-1] // ratio, ratio))
    out = lax.bitcast_convert_type(x, dtype)
    if old.itemsize > dtype.itemsize:
        out = merged(out, out.ndim - 2)
    return out
