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

__all__ = ["are_tiles", "input_gradient_of_tiles"]


def are_tiles(window: Window, size: tuple[int, ...]) -> bool:
    """Whether windows lie side by side and cover the data, nothing left over.

    Args:
        window: The window; those of one element do not count.
        size: Spatial sizes of the data.

    Example:
        >>> two = {"kernel": (2,), "stride": (2,), "dilation": (1,), "high": (0,), "out": (4,)}
        >>> are_tiles(Window(**two, low=(0,)), (8,)), are_tiles(Window(**two, low=(1,)), (8,))
        (True, False)
    """
    covered = tuple(o * k for o, k in zip(window.out, window.kernel, strict=True))
    dense = max(window.dilation, default=1) == 1 and not any(window.low)
    return dense and window.kernel == window.stride and covered == size and covered != window.out


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
