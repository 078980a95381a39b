"""Combining many arrays or rows to one, in the order that XLA:CPU runs with vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from emulator.kernels.strides import strided
from emulator.kernels.unfused import in_memory

__all__ = ["GROUP", "Combine", "fold_middle", "pairwise"]

Combine = Callable[[jax.Array, jax.Array], jax.Array]

GROUP = 16
"""Slices of an axis that are combined in one pass: as many loads as a loop has registers for."""


def pairwise(parts: Sequence[jax.Array], combine: Combine) -> jax.Array:
    """Combine arrays of one shape, neighbours first."""
    while len(parts) > 1:
        pairs = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + list(parts[len(pairs) * 2 :])
    return parts[0]


def fold_middle(x: jax.Array, combine: Combine) -> jax.Array:
    """``(L, N, T)`` combined to ``(L, T)``: a group of neighbours in a pass until one is left."""
    tails: list[jax.Array] = []
    while (size := x.shape[1]) > 1:
        group = min(GROUP, size)
        whole = size - size % group
        tails += [lax.slice_in_dim(x, i, i + 1, axis=1) for i in range(whole, size)]
        parts = [strided(x, i, whole, group, 1) for i in range(group)]
        # Else XLA makes one loop of two passes, with the loads of both.
        x = in_memory(pairwise(parts, combine))
    return pairwise([x, *tails], combine)[:, 0]
