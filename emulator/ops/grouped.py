"""Grouped matrix products: the experts of a mixture, each with its own rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import compute_dtype
from emulator.ops._gemm import contract
from emulator.ops._gradient import with_gradient
from emulator.ops.registry import op
from pef_schema.program import DType


def _blocks(offsets: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Cut the rows of each group into blocks of one size, the last of a group partly empty.

    How many rows a group has is data, but ``2 * groups`` blocks of the mean size hold them all.

    Args:
        offsets: int (groups,): the row after the last of each group, ascending.
        rows: How many rows there are.

    Returns:
        Group of each block (blocks,); row of each slot (blocks, size), 0 where it is empty;
        whether it is taken (blocks, size); and the slot of each row (rows,), -1 for a row after
        the last group.
    """
    groups = offsets.shape[0]
    size = max(1, -(-rows // groups))
    count = -(-rows // size) + groups
    ends = jnp.clip(offsets.astype(jnp.int32), 0, rows)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    used = jnp.cumsum(-(-(ends - starts) // size), dtype=jnp.int32)
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), used[:-1]])

    block = jnp.arange(count, dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(used, block, side="right"), groups - 1)
    begin = starts[group] + (block - first[group]) * size
    row = begin[:, None] + jnp.arange(size, dtype=jnp.int32)
    taken = (row < ends[group][:, None]) & (block < used[-1])[:, None]

    every = jnp.arange(rows, dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(ends, every, side="right"), groups - 1)
    slot = first[owner] * size + every - starts[owner]
    return group, jnp.where(taken, row, 0), taken, jnp.where(every < ends[-1], slot, -1)


def _rows(x: jax.Array, weight: jax.Array, offsets: jax.Array) -> jax.Array:
    dtype = compute_dtype(x.dtype)
    if not x.shape[0] or not weight.shape[0]:
        return jnp.zeros((x.shape[0], weight.shape[2]), dtype)
    group, row, taken, slot = _blocks(offsets, x.shape[0])
    padded = jnp.where(taken[:, :, None], x[row], 0)
    y = contract("bsi,bio->bso", padded, weight[group]).reshape(-1, weight.shape[2])
    return jnp.where((slot >= 0)[:, None], y[jnp.maximum(slot, 0)], 0)


def _sums(a: jax.Array, b: jax.Array, offsets: jax.Array) -> jax.Array:
    groups = offsets.shape[0]
    if not b.shape[0] or not groups:
        return jnp.zeros((groups, a.shape[1], b.shape[1]), compute_dtype(a.dtype))
    group, row, taken, _ = _blocks(offsets, b.shape[0])
    left = jnp.where(taken[:, :, None], a[row], 0)
    right = jnp.where(taken[:, :, None], b[row], 0)
    return jax.ops.segment_sum(contract("bsm,bsn->bmn", left, right), group, groups)


def _rows_backward(saved: tuple, g: jax.Array) -> tuple:
    x, weight, offsets = saved
    g = g.astype(x.dtype)
    dx = _rows(g, jnp.swapaxes(weight, 1, 2), offsets).astype(x.dtype)
    return dx, _sums(x, g, offsets).astype(weight.dtype), None


@with_gradient(_rows_backward)
def _ragged_rows(x: jax.Array, weight: jax.Array, offsets: jax.Array) -> jax.Array:
    """Rows of x (rows, in) times their group's matrix in weight (groups, in, out), widened.

    Its gradient adds up in the wide type too: autodiff would add blocks in the narrow one.
    """
    return _rows(x, weight, offsets)


def _sums_backward(saved: tuple, g: jax.Array) -> tuple:
    a, b, offsets = saved
    g = g.astype(a.dtype)
    da = _rows(b, jnp.swapaxes(g, 1, 2), offsets).astype(a.dtype)
    return da, _rows(a, g, offsets).astype(b.dtype), None


@with_gradient(_sums_backward)
def _ragged_sums(a: jax.Array, b: jax.Array, offsets: jax.Array) -> jax.Array:
    """Products of a (rows, m) and b (rows, n) over the rows of each group: (groups, m, n)."""
    return _sums(a, b, offsets)


@op(
    *("aten._grouped_mm.default", "samba.grouped_mm.default"),
    reads=(0, 1, 2),
    products="grouped",
)
def grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: DType | None = None,
) -> jax.Array:
    """A product per group; the axis along which a 2-d operand is cut ends at ``offs``.

    What lies after the last offset belongs to no group: its result is 0.

    Args:
        self: (rows, in), or (groups, rows, in).
        mat2: (in, columns), or (groups, in, columns).
        offs: int32 (groups,), ascending; needed unless both are 3-d.
        bias: torch knows none yet.
        out_dtype: Type of the result.

    Returns:
        (rows, columns) if one operand is 2-d, (groups, rows, columns) otherwise.
    """
    if self.ndim == 3 and mat2.ndim == 3:
        y = contract("bij,bjk->bik", self, mat2)
    elif offs is None:
        raise ValueError("a grouped product of a 2-d operand needs offs")
    elif mat2.ndim == 3:
        y = _ragged_rows(self, mat2, offs)
    elif self.ndim == 3:
        y = _ragged_rows(mat2.T, jnp.swapaxes(self, 1, 2), offs).T
    else:
        y = _ragged_sums(self.T, mat2, offs)
    if bias is not None:
        y = y + bias
    return y.astype(self.dtype if out_dtype is None else TO_NUMPY[out_dtype])
