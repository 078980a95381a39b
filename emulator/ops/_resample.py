"""Weighted sums of fixed places along an axis: the core of adaptive pooling and interpolation.

Which inputs make an output is known when the graph is lowered. Forward and backward are
both gathers: the transpose of such a table is another one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from emulator.ops._gradient import with_gradient


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Inputs that make each output of an axis.

    Args:
        index: int32 ``(out, k)``.
        weight: float64 ``(out, k)``.
        used: bool ``(out, k)``; entries not used are ignored, whatever they point at.
        size: Length of the input axis.
    """

    index: np.ndarray
    weight: np.ndarray
    used: np.ndarray
    size: int

    @functools.cached_property
    def transposed(self) -> Table:
        """Outputs that each input goes to."""
        lists: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for o, (row, weights, used) in enumerate(
            zip(self.index, self.weight, self.used, strict=True)
        ):
            for i, w, u in zip(row, weights, used, strict=True):
                if u:
                    lists[int(i)].append((o, float(w)))
        return table(lists, len(self.index))


def table(lists: Sequence[Sequence[tuple[int, float]]], size: int) -> Table:
    """A table from ``(input, weight)`` pairs per output."""
    k = max(1, *(len(entries) for entries in lists))
    index = np.zeros((len(lists), k), np.int32)
    weight = np.zeros((len(lists), k))
    used = np.zeros((len(lists), k), bool)
    for o, entries in enumerate(lists):
        for j, (i, w) in enumerate(entries):
            index[o, j], weight[o, j], used[o, j] = i, w, True
    return Table(index=index, weight=weight, used=used, size=size)


def _apply(x: jax.Array, t: Table, axis: int) -> jax.Array:
    shape = [1] * x.ndim
    shape[axis] = -1
    total: jax.Array | None = None
    for j in range(t.index.shape[1]):
        part = jnp.take(x, jnp.asarray(t.index[:, j]), axis=axis)
        if not (t.weight[:, j] == 1).all():
            part = part * jnp.asarray(t.weight[:, j], x.dtype).reshape(shape)
        if not t.used[:, j].all():
            part = jnp.where(jnp.asarray(t.used[:, j]).reshape(shape), part, 0)
        total = part if total is None else total + part
    assert total is not None  # a table has at least one column
    return total


def _forward(x: jax.Array, t: Table, axis: int) -> tuple[jax.Array, None]:
    return _apply(x, t, axis), None


def _backward(t: Table, axis: int, _saved: None, g: jax.Array) -> tuple[jax.Array]:
    return (_apply(g, t.transposed, axis),)


@with_gradient(_forward, _backward, static=(1, 2))
def resample(x: jax.Array, t: Table, axis: int) -> jax.Array:
    """Weighted sums of places along one axis.

    Args:
        x: Data in a compute dtype.
        t: The places.
        axis: The axis, not negative.

    Returns:
        ``x`` with ``len(t.index)`` elements along ``axis``.
    """
    return _apply(x, t, axis)
