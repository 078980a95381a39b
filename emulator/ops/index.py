"""Lowerings: reading by index."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.op_facts.facts import Fusing
from emulator.ops._promote import broadcast_to, constant
from emulator.ops._reduction import normalize_axis
from emulator.ops.registry import op
from pef_schema.errors import SambaError

Indices = tuple[jax.Array | None, ...]


_read = partial(op, moves=True, repeats=True, fusing=Fusing.APART, ranges=("first",))


class DataDependentIndex(SambaError):
    """An index whose result has a shape that depends on data."""

    deviation = "data-dependent-index"

    def __init__(self, *, op: str, found: str, hint: str) -> None:
        self.op, self.found, self.hint = op, found, hint
        super().__init__(
            f"{op}: found {found}, whose result has a shape that depends on the data; "
            f"shapes must be known when the model is compiled. {hint}"
        )


def in_bounds(index: jax.Array, size: int) -> jax.Array:
    """Count negative indices from the end."""
    return jnp.where(index < 0, index + size, index)


def is_mask(index: jax.Array) -> bool:
    """Whether torch takes an index tensor as a mask."""
    return index.dtype in (np.bool_, np.uint8)


@_read("aten.index.Tensor", reads=(1,), indices="each_dim")
@op("aten._unsafe_index.Tensor", reads=(1,), moves=True, repeats=True)
def index(x: jax.Array, indices: Indices) -> jax.Array:
    """Advanced indexing by integer tensors; ``None`` keeps a dimension."""
    if any(i is not None and is_mask(i) for i in indices):
        raise DataDependentIndex(
            op="aten.index.Tensor",
            found="a boolean mask as index",
            hint="Use torch.where or masked_fill, or select with integer indices.",
        )
    return x.at[index_key(x, indices)].get(mode="promise_in_bounds", wrap_negative_indices=False)


def index_key(x: jax.Array, indices: Indices) -> tuple[Any, ...]:
    """Integer indices, counted from the start, as a numpy-style key."""
    return tuple(
        slice(None) if i is None else in_bounds(i, x.shape[d]) for d, i in enumerate(indices)
    )


@_read("aten.index_select.default", reads=(2,), indices="along", elements="chosen")
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


@_read("aten.gather.default", reads=(2,), indices="along", elements="chosen")
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


@_read("aten.take.default", reads=(1,), indices="flat")
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """Elements of the flattened tensor."""
    return take_slices(x.reshape(-1), in_bounds(index, x.size), 0)


@_read("aten.take_along_dim.default", reads=(1,), indices="flat_only")
def take_along_dim(x: jax.Array, indices: jax.Array, dim: int | None = None) -> jax.Array:
    """One entry along a dimension for every entry of the index, after broadcasting.

    torch takes indices along a dimension modulo its size, as many times as it fits.
    """
    if dim is None:
        return take(x, indices.reshape(-1))
    axis = dim % x.ndim
    rest = [
        (1, 1) if d == axis else (a, b)
        for d, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    common = [jnp.broadcast_shapes((a,), (b,))[0] for a, b in rest]
    sizes = [x.shape[d] if d == axis else n for d, n in enumerate(common)]
    wanted = [indices.shape[d] if d == axis else n for d, n in enumerate(common)]
    index = jnp.mod(broadcast_to(indices, wanted), x.shape[axis])
    return gather(broadcast_to(x, sizes), axis, index)


@op("aten._unsafe_masked_index.default", reads=(1, 2), moves=True)
def masked_index(x: jax.Array, mask: jax.Array, indices: Indices, fill: float) -> jax.Array:
    """Indexed entries where the mask holds, else ``fill``; indices beside it may be wild.

    Of no entries all are ``fill``, as in torch.
    """
    safe = tuple(None if i is None else jnp.where(mask, i, 0) for i in indices)
    if not x.size:
        named = [i is not None for i in indices] + [False] * (x.ndim - len(indices))
        sizes = [max(n, 1) if at else n for n, at in zip(x.shape, named, strict=True)]
        found = index(jnp.zeros(sizes, x.dtype), safe)
        return jnp.full(found.shape, constant(fill, x.dtype))
    found = index(x, safe)
    return jnp.where(mask, found, constant(fill, x.dtype))


@op("aten.nonzero_static.default", differentiable=False, cheap=False, moves=True, complex=False)
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """Coordinates of the first ``size`` nonzero elements; ``fill_value`` where there are fewer."""
    if x.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    found = jnp.nonzero(x, size=size, fill_value=fill_value)
    return jnp.stack(found, axis=1).astype(np.int64)
