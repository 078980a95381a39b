"""Weighted sums of fixed places along an axis: the core of adaptive pooling and interpolation.

Which inputs make an output is known when the graph is lowered. Forward and backward are
both gathers: the transpose of such a table is another one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from emulator.errors import OpLimit
from emulator.ops._gradient import with_gradient

_MAX_COLUMNS = 32
"""Outputs of more entries are summed by one scatter: code for each column would grow with sizes."""


_MOST_PLACES = 2**24
"""Of an axis: float32, in which torch computes where an output lies, counts no further."""


def check_places(size: int, out: int) -> None:
    """Refuse axes that are too long for a table.

    Args:
        size: Length of the input axis.
        out: Length of the output axis.

    Raises:
        OpLimit: If one is.
    """
    for argument, length in (("the input's size", size), ("the output's size", out)):
        if length > _MOST_PLACES:
            raise OpLimit(argument=argument, found=length, most=_MOST_PLACES)


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Inputs that make each output of an axis, as a list of entries.

    Args:
        source: int64 ``(entries,)``, the input of each.
        target: int64 ``(entries,)``, the output that it is added to, ascending.
        weight: float64 ``(entries,)``.
        size: Length of the input axis.
        out: Length of the output axis.
    """

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    size: int
    out: int

    @functools.cached_property
    def transposed(self) -> Table:
        """Outputs that each input goes to."""
        order = np.argsort(self.source, kind="stable")
        return Table(
            source=self.target[order],
            target=self.source[order],
            weight=self.weight[order],
            size=self.out,
            out=self.size,
        )

    @functools.cached_property
    def width(self) -> int:
        """How many entries the longest output has."""
        return int(np.bincount(self.target, minlength=1).max()) if self.target.size else 0

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, weights, and whether there is one, ``(out, width)`` each."""
        shape = (self.out, max(self.width, 1))
        index, weight = np.zeros(shape, np.int32), np.zeros(shape)
        used = np.zeros(shape, bool)
        first = np.searchsorted(self.target, self.target)
        at = self.target, np.arange(self.target.size) - first
        index[at], weight[at], used[at] = self.source, self.weight, True
        return index, weight, used


def dense_table(index: np.ndarray, weight: np.ndarray, size: int) -> Table:
    """A table of as many entries for each output.

    Args:
        index: Inputs ``(out, k)``.
        weight: Their weights ``(out, k)``.
        size: Length of the input axis.
    """
    out, k = index.shape
    return Table(
        source=index.reshape(-1).astype(np.int64),
        target=np.repeat(np.arange(out), k),
        weight=weight.reshape(-1).astype(np.float64),
        size=size,
        out=out,
    )


def span_entries(first: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of spans: the inputs of each output one after the other, and the outputs.

    Args:
        first: The first input of each output, ``(out,)``.
        length: How many each output has, ``(out,)``.

    Returns:
        ``source`` and ``target`` of a table.

    Example:
        >>> span_entries(np.array([0, 4]), np.array([2, 1]))
        (array([0, 1, 4]), array([0, 0, 1]))
    """
    target = np.repeat(np.arange(first.size), length)
    begins = np.cumsum(length) - length
    return np.arange(target.size) - begins[target] + first[target], target


def _apply(x: jax.Array, t: Table, axis: int) -> jax.Array:
    if t.width > _MAX_COLUMNS:
        return _scattered(x, t, axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    index, weight, used = t.columns()
    total: jax.Array | None = None
    for j in range(index.shape[1]):
        part = jnp.take(x, jnp.asarray(index[:, j]), axis=axis)
        if not (weight[:, j] == 1).all():
            part = part * jnp.asarray(weight[:, j], x.dtype).reshape(shape)
        if not used[:, j].all():
            part = jnp.where(jnp.asarray(used[:, j]).reshape(shape), part, 0)
        total = part if total is None else total + part
    assert total is not None  # a table has at least one column
    return total


def _scattered(x: jax.Array, t: Table, axis: int) -> jax.Array:
    rows = jnp.moveaxis(x, axis, 0)
    weight = jnp.asarray(t.weight, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    parts = rows[jnp.asarray(t.source)] * weight
    empty = jnp.zeros((t.out, *rows.shape[1:]), x.dtype)
    total = empty.at[jnp.asarray(t.target)].add(
        parts, indices_are_sorted=True, mode="promise_in_bounds"
    )
    return jnp.moveaxis(total, 0, axis)


def _forward(x: jax.Array, t: Table, axis: int, back: Table | None) -> tuple[jax.Array, None]:
    del back
    return _apply(x, t, axis), None


def _backward(
    t: Table, axis: int, back: Table | None, _saved: None, g: jax.Array
) -> tuple[jax.Array]:
    return (_apply(g, (back or t).transposed, axis),)


@with_gradient(_backward, forward=_forward, static=(1, 2, 3))
def resample(x: jax.Array, t: Table, axis: int, back: Table | None = None) -> jax.Array:
    """Weighted sums of places along one axis.

    Args:
        x: Data in a compute dtype.
        t: The places.
        axis: The axis, not negative.
        back: The places of which the gradient is the transpose, None for the same.

    Returns:
        ``x`` with ``t.out`` elements along ``axis``.
    """
    del back
    return _apply(x, t, axis)
