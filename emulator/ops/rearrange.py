"""Lowerings: triangles, repeats, rolls and flips."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.slices import strided
from emulator.ops._long_windows import LONG, window_places
from emulator.ops._promote import broadcast_to, result_type
from emulator.ops._reduction import normalize_axis
from emulator.ops._reshape import reshaped
from emulator.ops.registry import op

Size = tuple[int, ...]


@op("aten.tril.default", reads=(), cheap=True, complex=True, ranges=("with_zero",))
def tril(x: jax.Array, diagonal: int = 0) -> jax.Array:
    """The lower triangle; zero above the diagonal."""
    return jnp.tril(x, diagonal)


@op("aten.triu.default", reads=(), cheap=True, complex=True, ranges=("with_zero",))
def triu(x: jax.Array, diagonal: int = 0) -> jax.Array:
    """The upper triangle; zero below the diagonal."""
    return jnp.triu(x, diagonal)


@op("aten.repeat.default", moves=True, repeats=True, elements="first")
def repeat(x: jax.Array, repeats: Size) -> jax.Array:
    """The tensor tiled along every dimension; missing leading dimensions are 1."""
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    spread = reshaped(x, tuple(n for size in shape for n in (1, size)))
    tiled = broadcast_to(spread, [n for pair in zip(repeats, shape, strict=True) for n in pair])
    return reshaped(tiled, tuple(r * n for r, n in zip(repeats, shape, strict=True)))


@op("aten.tile.default", moves=True, repeats=True, elements="first")
def tile(x: jax.Array, dims: Size) -> jax.Array:
    """The tensor tiled; missing leading repeats are 1."""
    return repeat(x, (1,) * (x.ndim - len(dims)) + tuple(dims))


@op("aten.roll.default", moves=True, elements="first")
def roll(x: jax.Array, shifts: int | Size, dims: int | Size = ()) -> jax.Array:
    """Rolled along dimensions, or along the flattened tensor if none is named."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if x.size == 0:
        return x
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, dims)


@op("aten.flip.default", moves=True, elements="first")
def flip(x: jax.Array, dims: Size) -> jax.Array:
    """Reversed along dimensions."""
    return lax.rev(x, tuple(d % x.ndim for d in dims)) if x.ndim else x


@op("aten.fliplr.default", moves=True, elements="first")
def fliplr(x: jax.Array) -> jax.Array:
    """Reversed along the second dimension."""
    return lax.rev(x, (1,))


@op("aten.flipud.default", moves=True, elements="first")
def flipud(x: jax.Array) -> jax.Array:
    """Reversed along the first dimension."""
    return lax.rev(x, (0,))


@op("aten.rot90.default", moves=True, elements="first")
def rot90(x: jax.Array, k: int = 1, dims: Size = (0, 1)) -> jax.Array:
    """Rotated by ``k`` quarter turns from the first dimension towards the second."""
    return jnp.rot90(x, k, (dims[0], dims[1]))


@op("aten.repeat_interleave.self_int", moves=True, repeats=True, elements="first")
def repeat_interleave(
    x: jax.Array, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> jax.Array:
    """Every slice along a dimension repeated next to itself."""
    del output_size
    axis = 0 if dim is None else normalize_axis(dim, x.ndim)
    x = x.reshape(-1) if dim is None or x.ndim == 0 else x
    head, tail = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread = broadcast_to(reshaped(x, (*head, 1, *tail)), (*head, repeats, *tail))
    return reshaped(spread, (*head[:-1], head[-1] * repeats, *tail))


@op("aten.diagonal.default", "aten.diagonal_copy.default", moves=True, elements="first")
def diagonal(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    """A diagonal of two dimensions as a new last dimension."""
    return jnp.diagonal(x, offset, dim1, dim2)


@op("aten.linalg_diagonal.default", moves=True, elements="first")
def linalg_diagonal(x: jax.Array, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    """:func:`diagonal` of the last two dimensions unless others are named."""
    return diagonal(x, offset, dim1, dim2)


@op("aten.diag_embed.default", moves=True)
def diag_embed(x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    """The last dimension placed on a diagonal of two new dimensions, zero elsewhere."""
    placed = jnp.vectorize(partial(jnp.diag, k=offset), signature="(n)->(m,m)")(x)
    return jnp.moveaxis(placed, (-2, -1), (dim1, dim2))


@op("aten.diag.default", moves=True)
def diag(x: jax.Array, diagonal: int = 0) -> jax.Array:
    """A diagonal of a matrix, or a matrix with a vector on its diagonal."""
    return diag_embed(x, diagonal) if x.ndim == 1 else jnp.diagonal(x, diagonal)


@op("aten.diagflat.default", moves=True)
def diagflat(x: jax.Array, offset: int = 0) -> jax.Array:
    """A matrix with the flattened tensor on its diagonal."""
    return diag_embed(x.reshape(-1), offset)


@op("aten.block_diag.default", moves=True)
def block_diag(tensors: tuple[jax.Array, ...]) -> jax.Array:
    """Matrices along the diagonal of a larger one."""
    dtype = result_type(*tensors)
    return jax.scipy.linalg.block_diag(*(x.astype(dtype) for x in tensors))


@op("aten.unfold.default", "aten.unfold_copy.default", moves=True, elements="first")
def unfold(x: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    """Windows along a dimension as a new last dimension."""
    if x.ndim == 0:
        return x.reshape((size,))
    axis = dimension % x.ndim
    count = (x.shape[axis] - size) // step + 1
    if size > LONG:
        return jnp.moveaxis(jnp.take(x, window_places(size, 1, step, count), axis=axis), axis, -1)
    taps = [strided(x, tap, tap + (count - 1) * step + 1, step, axis) for tap in range(size)]
    if not taps:
        return jnp.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :], 0), x.dtype)
    return jnp.stack(taps, axis=-1)


@op("aten.pixel_shuffle.default", moves=True)
def pixel_shuffle(x: jax.Array, upscale_factor: int) -> jax.Array:
    """Channels ``c * r * r`` moved into an ``r`` times larger image."""
    *lead, c, h, w = x.shape
    r = upscale_factor
    c //= r * r
    n = len(lead)
    split = reshaped(x, (*lead, c, r, r, h, w))
    moved = lax.transpose(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshaped(moved, (*lead, c, h * r, w * r))


@op("aten.pixel_unshuffle.default", moves=True)
def pixel_unshuffle(x: jax.Array, downscale_factor: int) -> jax.Array:
    """The inverse of :func:`pixel_shuffle`."""
    *lead, c, h, w = x.shape
    r = downscale_factor
    n = len(lead)
    split = reshaped(x, (*lead, c, h // r, r, w // r, r))
    moved = lax.transpose(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshaped(moved, (*lead, c * r * r, h // r, w // r))


@op(
    *("aten.channel_shuffle.default", "aten.native_channel_shuffle.default"),
    moves=True,
    complex=False,
)
def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    """Channels dealt out of their groups one by one."""
    n, c, *rest = x.shape
    split = reshaped(x, (n, groups, c // groups, *rest))
    return reshaped(jnp.swapaxes(split, 1, 2), x.shape)


@op("aten.as_strided.default", "aten.as_strided_copy.default", moves=True)
def as_strided(
    x: jax.Array, size: Size, stride: Size, storage_offset: int | None = None
) -> jax.Array:
    """A strided view of the elements in row-major order; overlaps add in the gradient."""
    return x.reshape(-1)[jnp.asarray(strided_places(size, stride, storage_offset))]


def strided_places(size: Size, stride: Size, offset: int | None) -> np.ndarray:
    """Places of a strided view's elements in memory, in elements from its start."""
    places = np.asarray(offset or 0, np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * s
    return places


@op("aten.resize.default", differentiable=False, cheap=False, moves=True)
def resize(x: jax.Array, size: Size, *, memory_format: object = None) -> jax.Array:
    """The elements in row-major order in another shape; zeros where there are too few."""
    del memory_format
    count = math.prod(size)
    flat = x.reshape(-1)[:count]
    return jnp.pad(flat, (0, count - flat.size)).reshape(size)


@op("aten.slice_scatter.default", moves=True, ranges=("some_of", 0, 1), elements="all")
def slice_scatter(
    x: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    """``x`` with a range along a dimension replaced by ``src``."""
    axis = dim % x.ndim
    first, last, _ = slice(start, end).indices(x.shape[axis])
    places = range(first, max(first, last), step)
    if len(places) == x.shape[axis]:
        return src.astype(x.dtype)
    return _replace(x, src, axis, places)


@op("aten.select_scatter.default", moves=True, ranges=("some_of", 0, 1), elements="all")
def select_scatter(x: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    """``x`` with one slice along a dimension replaced by ``src``."""
    axis = dim % x.ndim
    first = index % x.shape[axis]
    return _replace(x, jnp.expand_dims(src, axis), axis, range(first, first + 1))


@op("aten.diagonal_scatter.default", moves=True, elements="all")
def diagonal_scatter(
    x: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    """``x`` with a diagonal of two dimensions replaced by ``src``."""
    lines = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    rows = lax.broadcasted_iota(np.int32, lines.shape[-2:], 0)
    columns = lax.broadcasted_iota(np.int32, lines.shape[-2:], 1)
    hit = columns == rows + np.int32(offset)
    # Column c of the diagonal holds src[c - max(offset, 0)].
    before = max(offset, 0)
    after = lines.shape[-1] - before - src.shape[-1]
    wide = _pad_last(src.astype(x.dtype), before, after)
    return jnp.moveaxis(jnp.where(hit, wide[..., None, :], lines), (-2, -1), (dim1, dim2))


def _pad_last(x: jax.Array, before: int, after: int) -> jax.Array:
    config = [(0, 0, 0)] * (x.ndim - 1) + [(before, after, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _replace(x: jax.Array, src: jax.Array, axis: int, places: range) -> jax.Array:
    """Spread ``src`` over the places by padding and choose by a mask: no scatter."""
    if not len(places):
        return x
    size = x.shape[axis]
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (places[0], size - places[-1] - 1, places.step - 1)
    spread = lax.pad(src.astype(x.dtype), jnp.zeros((), x.dtype), config)
    line = np.zeros(size, bool)
    line[places.start : places[-1] + 1 : places.step] = True
    shape = tuple(size if a == axis else 1 for a in range(x.ndim))
    return jnp.where(jnp.asarray(line).reshape(shape), spread, x)
