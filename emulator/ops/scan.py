"""Lowerings: cumulative operations, sorting and searching."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.ops._promote import is_float, wide_type
from emulator.ops._reduction import normalize_axis
from emulator.ops.registry import op
from pef_schema.program import DType


@op("aten.cumsum.default", reads=())
def cumsum(x: jax.Array, dim: int, *, dtype: DType | None = None) -> jax.Array:
    """Running sum; integers give int64."""
    out = _accumulated(dtype, x)
    if x.ndim == 0:
        return x.astype(out)
    wide = x.astype(wide_type(out))
    return lax.cumsum(wide, normalize_axis(dim, x.ndim)).astype(out)


def _accumulated(dtype: DType | None, x: jax.Array) -> np.dtype:
    if dtype is not None:
        return TO_NUMPY[dtype]
    return np.dtype(x.dtype) if is_float(x.dtype) else np.dtype(np.int64)
