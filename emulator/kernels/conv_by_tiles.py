"""Input gradients of convolutions whose windows lie side by side, as one product.

Every element of the data is read by one window: that is how pictures are cut into patches, and,
the other way round, how a transposed convolution makes a block of places of each. Forward and
weight gradient stay with the others: their data would have to be laid out anew first.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from emulator.kernels.products import product
from emulator.kernels.windows import Window

__all__ = ["input_gradient_of_tiles"]


def input_gradient_of_tiles(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """What each window gives to its block of the data, of spatial sizes ``size``; one group."""
    del groups
    n, batch, (features, channels) = window.ndim, g.shape[0], w.shape[:2]
    rows = jnp.moveaxis(g.astype(w.dtype), 1, -1).reshape(batch * math.prod(window.out), features)
    matrix = jnp.moveaxis(w, 1, -1).reshape(features, math.prod(window.kernel) * channels)
    parts = product("po,ok->pk", rows, matrix)
    parts = parts.reshape(batch, *window.out, *window.kernel, channels)
    pairs = (axis for a in range(n) for axis in (1 + a, 1 + n + a))
    dx = parts.transpose(0, *pairs, 2 * n + 1).reshape(batch, *size, channels)
    return jnp.moveaxis(dx, -1, 1)
