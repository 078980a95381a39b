"""Lowerings: triangles, repeats, rolls and flips."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._promote import broadcast_to
from emulator.ops.registry import op

Size = tuple[int, ...]


def _below(shape: Size, diagonal: int) -> jax.Array:
    """Mask of the entries on or below a diagonal of the last two dimensions."""
    rows = lax.broadcasted_iota(np.int32, shape[-2:], 0)
    columns = lax.broadcasted_iota(np.int32, shape[-2:], 1)
    return columns <= rows + np.int32(diagonal)


@op("aten.tril.default", reads=(), cheap=True)
def tril(x: jax.Array, diagonal: int = 0) -> jax.Array:
    """The lower triangle; zero above the diagonal."""
    return jnp.where(_below(x.shape, diagonal), x, 0)


@op("aten.triu.default", reads=(), cheap=True)
def triu(x: jax.Array, diagonal: int = 0) -> jax.Array:
    """The upper triangle; zero below the diagonal."""
    return jnp.where(_below(x.shape, diagonal - 1), 0, x)


@op("aten.repeat.default", reads=(), cheap=True)
def repeat(x: jax.Array, repeats: Size) -> jax.Array:
    """The tensor tiled along every dimension; missing leading dimensions are 1."""
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    spread = lax.reshape(x, tuple(n for size in shape for n in (1, size)))
    tiled = broadcast_to(spread, [n for pair in zip(repeats, shape, strict=True) for n in pair])
    return lax.reshape(tiled, tuple(r * n for r, n in zip(repeats, shape, strict=True)))


@op("aten.tile.default", reads=(), cheap=True)
def tile(x: jax.Array, dims: Size) -> jax.Array:
    """The tensor tiled; missing leading repeats are 1."""
    return repeat(x, (1,) * (x.ndim - len(dims)) + tuple(dims))


@op("aten.roll.default", reads=(), cheap=True)
def roll(x: jax.Array, shifts: int | Size, dims: int | Size = ()) -> jax.Array:
    """Rolled along dimensions, or along the flattened tensor if none is named."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if x.size == 0:
        return x
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, dims)


@op("aten.flip.default", reads=(), cheap=True)
def flip(x: jax.Array, dims: Size) -> jax.Array:
    """Reversed along dimensions."""
    return lax.rev(x, tuple(d % x.ndim for d in dims)) if x.ndim else x
