"""Lowerings of matrix products."""

from __future__ import annotations

import jax

from emulator.ops import gemm
from emulator.ops.gemm import contract
from emulator.ops.precision import widen
from emulator.ops.registry import op


@op("aten.linear.default", reads=(0, 1))
def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """``x @ weight.T + bias`` for x ``(..., in)`` and weight ``(out, in)`` or ``(in,)``."""
    if weight.ndim == 1:
        y = gemm.matmul(x, weight)
    else:
        rows = x.reshape(-1, x.shape[-1])
        y = contract("ni,oi->no", rows, weight).reshape(*x.shape[:-1], weight.shape[0])
    return (y if bias is None else y + widen(bias)).astype(x.dtype)


@op("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", reads=(0, 1))
@op("aten.dot.default", "aten.vdot.default", reads=(0, 1))
def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of vectors, matrices or batches of them."""
    return gemm.matmul(a, b).astype(a.dtype)


def _blend(
    self: jax.Array, product: jax.Array, beta: float, alpha: float, dtype: jax.typing.DTypeLike
) -> jax.Array:
    y = product if alpha == 1 else product * alpha
    if beta != 0:  # torch: with beta 0 a NaN in self does not count
        y = y + (widen(self) if beta == 1 else widen(self) * beta)
    return y.astype(dtype)


@op("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default", reads=(1, 2))
def addmm(
    self: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    """``beta * self + alpha * (a @ b)``; self broadcasts."""
    return _blend(self, gemm.matmul(a, b), beta, alpha, a.dtype)
