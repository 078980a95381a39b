"""Lowerings of matrix products."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.kernels.precision import LOW, compute_dtype, widen, widened
from emulator.op_facts.facts import ALL_INPUTS
from emulator.op_facts.product_flops import chain_splits
from emulator.ops._contractions import contract, contraction, matmul_wide, rounded
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import broadcast_to, conjugate, elementwise, is_inexact
from emulator.ops._reduction import reduce_kept, reduce_sum
from emulator.ops._reshape import rows_of
from emulator.ops.registry import op
from pef_schema.program import DType

_product = partial(op, reads=(0, 1), linear_in=(0, 1), complex=True, rounds=ALL_INPUTS)


@_product("aten.linear.default", flops=("bias", 2), products="linear")
def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """``x @ weight.T + bias`` for x ``(..., in)`` and weight ``(out, in)`` or ``(in,)``."""
    if weight.ndim == 1:
        y = matmul_wide(x, weight)
    else:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        shape = (*x.shape[:-1], weight.shape[0])
        if x.dtype in LOW and (bias is None or bias.ndim < 2):
            biases = () if bias is None else (broadcast_to(bias, weight.shape[:1]),)
            return rounded("ni,oi->no", bool(biases), rows, weight, *biases).reshape(shape)
        y = contract("ni,oi->no", rows, weight).reshape(shape)
    return (y if bias is None else y + broadcast_to(widen(bias), y.shape)).astype(x.dtype)


@_product(
    *("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default"),
    "aten.dot.default",
    products="matmul",
)
def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of vectors, matrices or batches of them."""
    return matmul_wide(a, b).astype(a.dtype)


@_product("aten.vdot.default", products="matmul")
def vdot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of two vectors; the first is conjugated."""
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


def _register_added(
    names: tuple[str, ...],
    product: Callable[[jax.Array, jax.Array], jax.Array],
    linear_in: tuple[int, ...] = (),
) -> None:
    """``beta * self + alpha * product(a, b)``; self broadcasts."""

    @op(
        *names,
        reads=(1, 2),
        complex=True,
        flops=("results", 1),
        products="added_matmul",
        rounds=ALL_INPUTS,
        linear_in=linear_in,
    )
    def lower(
        self: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
    ) -> jax.Array:
        return _blend(self, product(a, b), beta, alpha, a.dtype)


_added = ("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
_register_added(_added, matmul_wide, linear_in=(1, 2))
_register_added(("aten.addbmm.default",), partial(contract, "bij,bjk->ik"))


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
    free = [c for c in left if c not in right] + [c for c in right if c not in left]
    spec = f"{''.join(left)},{''.join(right)}->{''.join(free)}"
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
    """Sum of products along one axis; the first factor is conjugated."""
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
    valid = (row < ends[group][:, None]) & (block < used[-1])[:, None]

    every = jnp.arange(rows, dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(ends, every, side="right"), groups - 1)
    slot = first[owner] * size + every - starts[owner]
    return group, jnp.where(valid, row, 0), valid, jnp.where(every < ends[-1], slot, -1)


def _rows(x: jax.Array, weight: jax.Array, offsets: jax.Array) -> jax.Array:
    dtype = compute_dtype(x.dtype)
    if not x.shape[0] or not weight.shape[0]:
        return jnp.zeros((x.shape[0], weight.shape[2]), dtype)
    group, row, valid, slot = _blocks(offsets, x.shape[0])
    padded = jnp.where(valid[:, :, None], x[row], 0)
    y = contract("bsi,bio->bso", padded, weight[group]).reshape(-1, weight.shape[2])
    return jnp.where((slot >= 0)[:, None], y[jnp.maximum(slot, 0)], 0)


def _sums(a: jax.Array, b: jax.Array, offsets: jax.Array) -> jax.Array:
    groups = offsets.shape[0]
    if not b.shape[0] or not groups:
        return jnp.zeros((groups, a.shape[1], b.shape[1]), compute_dtype(a.dtype))
    group, row, valid, _ = _blocks(offsets, b.shape[0])
    left = jnp.where(valid[:, :, None], a[row], 0)
    right = jnp.where(valid[:, :, None], b[row], 0)
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
