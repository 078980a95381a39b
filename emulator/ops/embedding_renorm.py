"""Rows of an embedding table that are too long, made shorter before they are read."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.kernels.precision import widen
from emulator.ops._gradient import with_gradient
from emulator.ops.index import take_slices
from emulator.ops.moments import vector_norm
from emulator.ops.registry import op

_ROUND = 1e-7
"""What torch adds to a norm before it divides by it."""


@op("samba.embedding_renorm.default", reads=(), flops=("renorm",), indices="rows")
def embedding_renorm(
    weight: jax.Array, indices: jax.Array, max_norm: float, norm_type: float
) -> jax.Array:
    """The table with no row among those of ``indices`` longer than ``max_norm``.

    Torch changes the table behind the gradient, which is that of the table as it went in.

    Args:
        weight: Table, (rows, width).
        indices: Row numbers of any shape; other rows stay as they are.
        max_norm: The longest that a row may be.
        norm_type: Which norm, as for ``linalg_vector_norm``.
    """
    return _renormed(float(max_norm), float(norm_type), weight, indices)


def _renorm(max_norm: float, norm_type: float, weight: jax.Array, indices: jax.Array) -> jax.Array:
    flat = indices.reshape(-1)
    rows = take_slices(weight, flat, 0)
    norm = vector_norm(rows, norm_type, 1, True).astype(jnp.float64)
    wide = widen(rows)
    scale = (max_norm / (norm + _ROUND)).astype(wide.dtype)
    short = jnp.where(norm > max_norm, wide * scale, wide).astype(weight.dtype)
    # A row that is named twice is written twice, with the same numbers.
    return weight.at[flat].set(short)


@with_gradient(
    lambda max_norm, norm_type, weight, indices: (
        _renorm(max_norm, norm_type, weight, indices),
        None,
    ),
    lambda max_norm, norm_type, saved, g: (g, None),
    static=(0, 1),
)
def _renormed(
    max_norm: float, norm_type: float, weight: jax.Array, indices: jax.Array
) -> jax.Array:
    return _renorm(max_norm, norm_type, weight, indices)
