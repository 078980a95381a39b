"""Lowerings of matrix products."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from emulator.kernels.precision import LOW, compute_dtype, widen, widened
from emulator.op_facts.facts import ALL_INPUTS
from emulator.op_facts.product_flops import chain_splits
from emulator.ops import _gemm as gemm
from emulator.ops._contractions import contraction
from emulator.ops._gemm import contract, rounded
from emulator.ops._promote import broadcast_to, conjugate, elementwise, is_inexact
from emulator.ops._reduction import reduce_kept, reduce_sum
from emulator.ops._reshape import rows_of
from emulator.ops.registry import op

_product = partial(op, reads=(0, 1), linear_in=(0, 1), complex=True, rounds=ALL_INPUTS)


@_product("aten.linear.default", flops=("bias", 2), products="linear")
def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """``x @ weight.T + bias`` for x ``(..., in)`` and weight ``(out, in)`` or ``(in,)``."""
    if weight.ndim == 1:
        y = gemm.matmul(x, weight)
    else:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        shape = (*x.shape[:-1], weight.shape[0])
        if x.dtype in LOW:
            given = () if bias is None else (bias,)
            return rounded("ni,oi->no", bool(given), rows, weight, *given).reshape(shape)
        y = contract("ni,oi->no", rows, weight).reshape(shape)
    return (y if bias is None else y + broadcast_to(widen(bias), y.shape)).astype(x.dtype)


@_product(
    *("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default"),
    "aten.dot.default",
    products="matmul",
)
def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of vectors, matrices or batches of them."""
    return gemm.matmul(a, b).astype(a.dtype)


@_product("aten.vdot.default", products="matmul")
def vdot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of two vectors, of which the first is conjugated."""
    return matmul(conjugate(a), b)


def _blend(
    self: jax.Array, product: jax.Array, beta: complex, alpha: complex, dtype: jax.typing.DTypeLike
) -> jax.Array:
    if not is_inexact(dtype):  # torch: integers take whole factors
        beta, alpha = int(beta.real), int(alpha.real)
    y = product if alpha == 1 else product * alpha
    if beta != 0:  # torch: with beta 0 a NaN in self does not count
        added = broadcast_to(widen(self), y.shape)
        y = y + (added if beta == 1 else added * beta)
    return y.astype(dtype)


@op(
    *("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default"),
    reads=(1, 2),
    linear_in=(1, 2),
    complex=True,
    flops=("results", 1),
    products="added_matmul",
    rounds=ALL_INPUTS,
)
def addmm(
    self: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    """``beta * self + alpha * (a @ b)``; self broadcasts."""
    return _blend(self, gemm.matmul(a, b), beta, alpha, a.dtype)


@op(
    "aten.addbmm.default",
    reads=(1, 2),
    complex=True,
    flops=("results", 1),
    products="added_matmul",
    rounds=ALL_INPUTS,
)
def addbmm(
    self: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    """``beta * self + alpha * sum(a[i] @ b[i])``."""
    return _blend(self, contract("bij,bjk->ik", a, b), beta, alpha, a.dtype)


@op("aten.addr.default", reads=(1, 2), complex=True, flops=("results", 3), rounds=ALL_INPUTS)
@widened
def addr(
    self: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    """``beta * self + alpha * outer(a, b)``."""
    return _blend(self, a[:, None] * b[None, :], beta, alpha, a.dtype)


@op("aten.outer.default", "aten.ger.default", reads=(0, 1), complex=True, flops=("results", 1))
def outer(a: jax.Array, b: jax.Array) -> jax.Array:
    """Products of all pairs of entries of two vectors."""
    return a[:, None] * b[None, :]


@op("aten.inner.default", reads=(0, 1), complex=True, products="inner")
def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """Products along the last axes; a scalar multiplies."""
    if a.ndim == 0 or b.ndim == 0:
        return elementwise(jnp.multiply, a, b)
    return tensordot(a, b, (-1,), (-1,))


@op("aten.tensordot.default", reads=(0, 1), complex=True, products="tensordot")
def tensordot(
    a: jax.Array, b: jax.Array, dims_self: Sequence[int], dims_other: Sequence[int]
) -> jax.Array:
    """Product summed over pairs of axes; what is left of a stands before what is left of b."""
    left = list(string.ascii_letters[: a.ndim])
    right = list(string.ascii_letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(dims_self, dims_other, strict=True):
        if a.shape[i] != b.shape[j]:  # a length of 1 broadcasts, as in torch
            a = reduce_kept(a, (i,)) if b.shape[j] == 1 else a
            b = reduce_kept(b, (j,)) if a.shape[i] == 1 else b
        right[j] = left[i]
    kept = [c for c in left if c not in right] + [c for c in right if c not in left]
    spec = f"{''.join(left)},{''.join(right)}->{''.join(kept)}"
    return contract(spec, a, b).astype(a.dtype)


def _explicit(equation: str, tensors: Sequence[jax.Array]) -> str:
    """An einsum equation without blanks, with ``...`` spelled out and its result stated."""
    equation = equation.replace(" ", "")
    inputs, arrow, out = equation.partition("->")
    terms = inputs.split(",")
    spare = [c for c in string.ascii_letters if c not in equation]
    counts = [x.ndim - len(t.replace("...", "")) for t, x in zip(terms, tensors, strict=True)]
    most = max((n for n, t in zip(counts, terms, strict=True) if "..." in t), default=0)
    dots = "".join(spare[:most])
    terms = [t.replace("...", dots[most - n :]) for t, n in zip(terms, counts, strict=True)]
    if arrow:
        out = out.replace("...", dots)
    else:
        letters = sorted(set("".join(terms)) - set(dots))
        out = dots + "".join(c for c in letters if sum(t.count(c) for t in terms) == 1)
    return f"{','.join(terms)}->{out}"


@op("aten.einsum.default", reads=(1,), complex=True, products="einsum", rounds=ALL_INPUTS)
def einsum(
    equation: str, tensors: Sequence[jax.Array], *, path: Sequence[int] | None = None
) -> jax.Array:
    """Einstein summation; ``path`` changes the order of work only and is not needed."""
    spec = _explicit(equation, tensors)
    dtype = tensors[0].dtype
    if _is_contraction(spec, tensors):
        return contraction(spec, *tensors).astype(dtype)
    wide = [widen(x) for x in tensors]
    return jnp.einsum(spec, *wide, preferred_element_type=compute_dtype(dtype)).astype(dtype)


def _is_contraction(spec: str, tensors: Sequence[jax.Array]) -> bool:
    """Whether :func:`contract` takes it: two operands, no diagonal, lone sum or broadcast."""
    inputs, out = spec.split("->")
    terms = inputs.split(",")
    if len(terms) != 2 or any(len(set(t)) != len(t) for t in terms):
        return False
    left, right = terms
    if not set(left) <= set(right) | set(out) or not set(right) <= set(left) | set(out):
        return False
    sizes: dict[str, int] = {}
    return all(
        sizes.setdefault(c, n) == n
        for term, x in zip(terms, tensors, strict=True)
        for c, n in zip(term, x.shape, strict=True)
    )


@op("aten.kron.default", reads=(0, 1), complex=True, flops=("results", 1))
def kron(a: jax.Array, b: jax.Array) -> jax.Array:
    """Kronecker product."""
    n = max(a.ndim, b.ndim)
    a = a.reshape((1,) * (n - a.ndim) + a.shape)
    b = b.reshape((1,) * (n - b.ndim) + b.shape)
    shape = tuple(i * j for i, j in zip(a.shape, b.shape, strict=True))
    a = jnp.expand_dims(a, tuple(range(1, 2 * n, 2)))
    b = jnp.expand_dims(b, tuple(range(0, 2 * n, 2)))
    return (a * b).reshape(shape)


@op(
    "aten.bilinear.default",
    reads=(0, 1, 2),
    flops=("bias", 3),
    products="bilinear",
    rounds=ALL_INPUTS,
)
def bilinear(
    x1: jax.Array, x2: jax.Array, weight: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    """``x1 @ weight[o] @ x2`` for each output o; weight ``(O, I, J)``."""
    lead = x1.shape[:-1]
    half = contract("ni,oij->noj", rows_of(x1), weight).astype(x1.dtype)
    y = contract("noj,nj->no", half, rows_of(x2))
    y = y if bias is None else y + broadcast_to(widen(bias), y.shape)
    return y.astype(x1.dtype).reshape(*lead, weight.shape[0])


@op("aten.linalg_vecdot.default", reads=(0, 1), complex=True, flops=("input", 0, 2))
@widened
def vecdot(a: jax.Array, b: jax.Array, *, dim: int = -1) -> jax.Array:
    """Sum of products along one axis, of which the first factors are conjugated."""
    product = conjugate(a) * b
    return reduce_sum(product, (dim % product.ndim,))


@op(
    *("aten.linalg_multi_dot.default", "aten.chain_matmul.default"),
    reads=(0,),
    complex=True,
    products="multi_dot",
)
def multi_dot(tensors: Sequence[jax.Array]) -> jax.Array:
    """Product of a chain of matrices, in the order that needs the fewest multiplications."""
    matrices = list(tensors)
    first, last = matrices[0].ndim == 1, matrices[-1].ndim == 1
    if first:
        matrices[0] = matrices[0][None, :]
    if last:
        matrices[-1] = matrices[-1][:, None]
    sizes = [m.shape[0] for m in matrices] + [matrices[-1].shape[1]]
    y = _chain(matrices, chain_splits(sizes), 0, len(matrices) - 1)
    y = y[0] if first else y
    return y[..., 0] if last else y


def _chain(
    matrices: Sequence[jax.Array],
    split: dict[tuple[int, int], int],
    i: int,
    j: int,
) -> jax.Array:
    if i == j:
        return matrices[i]
    k = split[i, j]
    a = _chain(matrices, split, i, k)
    b = _chain(matrices, split, k + 1, j)
    return contract("ij,jk->ik", a, b).astype(a.dtype)
