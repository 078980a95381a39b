"""Lowerings: reading by index."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._reduction import normalize_axis
from emulator.ops.registry import op
from pef_schema.errors import SambaError

Indices = tuple[jax.Array | None, ...]


class DataDependentIndex(SambaError):
    """An index whose result has a shape that depends on data."""

    def __init__(self, *, op: str, found: str, hint: str) -> None:
        self.op, self.found, self.hint = op, found, hint
        super().__init__(
            f"{op}: found {found}, whose result has a shape that depends on the data; "
            f"shapes must be known when the model is compiled. {hint}"
        )


def in_bounds(index: jax.Array, size: int) -> jax.Array:
    """Count negative indices from the end."""
    return jnp.where(index < 0, index + size, index)


def _is_mask(index: jax.Array) -> bool:
    return index.dtype in (np.bool_, np.uint8)


@op("aten.index.Tensor", "aten._unsafe_index.Tensor", reads=(1,))
def index(x: jax.Array, indices: Indices) -> jax.Array:
    """Advanced indexing by integer tensors; ``None`` keeps a dimension."""
    if any(i is not None and _is_mask(i) for i in indices):
        raise DataDependentIndex(
            op="aten.index.Tensor",
            found="a boolean mask as index",
            hint="Use torch.where or masked_fill, or select with integer indices.",
        )
    key = tuple(
        slice(None) if i is None else in_bounds(i, x.shape[d]) for d, i in enumerate(indices)
    )
    return x.at[key].get(mode="promise_in_bounds", wrap_negative_indices=False)


@op("aten.index_select.default", reads=(2,))
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Slices of one dimension in the order of an index."""
    if x.ndim == 0:
        return x
    axis = normalize_axis(dim, x.ndim)
    return take_slices(x, index.reshape(-1), axis)


def take_slices(x: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """``x[..., index, ...]`` for indices known to be in bounds."""
    key = (slice(None),) * axis + (index,)
    return x.at[key].get(mode="promise_in_bounds", wrap_negative_indices=False)


@op("aten.gather.default", reads=(2,))
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    """One entry along a dimension for every entry of the index."""
    del sparse_grad
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    return x.at[gather_key(index, normalize_axis(dim, x.ndim), x.ndim)].get(
        mode="promise_in_bounds", wrap_negative_indices=False
    )


def gather_key(index: jax.Array, axis: int, ndim: int) -> tuple[jax.Array, ...]:
    """Coordinates that ``gather`` and ``scatter`` with this index touch."""
    index = index.reshape(index.shape or (1,) * ndim)
    return tuple(
        index if d == axis else lax.broadcasted_iota(index.dtype, index.shape, d)
        for d in range(ndim)
    )


@op("aten.embedding.default", reads=(1,))
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """Rows of a table; the row ``padding_idx`` gets no gradient."""
    del sparse
    rows = take_slices(weight, indices, 0)
    if padding_idx >= 0:
        pad = jnp.expand_dims(indices == padding_idx, -1)
        rows = jnp.where(pad, lax.stop_gradient(rows), rows)
    if scale_grad_by_freq:
        flat = indices.reshape(-1)
        counts = jnp.zeros(weight.shape[0], np.int32).at[flat].add(1)
        rows = _shrink_gradient(rows, jnp.expand_dims(take_slices(counts, indices, 0), -1))
    return rows


@jax.custom_vjp
def _shrink_gradient(rows: jax.Array, counts: jax.Array) -> jax.Array:
    del counts
    return rows


_shrink_gradient.defvjp(
    lambda rows, counts: (rows, counts),
    lambda counts, g: ((g / counts).astype(g.dtype), None),
)
