"""Products of two arrays: of matrices, and of what is none as it lies."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from emulator.kernels.precision import widen
from emulator.kernels.products import Spec, is_of_matrices, product
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import reduce_sum


def contraction(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of two arrays summed over their common axes, as :func:`contract` has it.

    XLA's product has its axes in the order batch, rows, columns, and gives what an einsum wants by
    a transposition: a loop that jumps through memory at every element (9 of 37 ms of a step of a
    mixture of experts went to one over 4 MiB). Two forms need none.

    Args:
        spec: Axes as in einsum. Every axis of an operand must occur in the other operand or in
            the result.
        a, b: Operands of one dtype.

    Returns:
        The product, float32 for bfloat16 and float16 operands, else of their dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> contraction("td,edi->eti", jnp.ones((2, 3)), jnp.ones((4, 3, 5))).shape
        (4, 2, 5)
        >>> contraction("te,etd->td", jnp.ones((2, 4)), jnp.ones((4, 2, 3))).tolist()[0]
        [4.0, 4.0, 4.0]
    """
    axes = Spec.of(spec)
    if is_of_matrices(axes, a, b):
        return contract(spec, a, b)
    for form, x, y in ((axes, a, b), (_turned(axes), b, a)):
        weights = _weights(form, x, y)
        if weights is not None:
            return _weighted(weights, x, y)
        more = _batched(form, x, y)
        if more is not None:
            return contract(more.spec, jnp.expand_dims(x, more.axes), y)
    return contract(spec, a, b)


def _turned(axes: Spec) -> Spec:
    return Spec.of(f"{axes.right},{axes.left}->{axes.out}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batched:
    """A product of batches of matrices, for which the left operand is repeated.

    Args:
        spec: Its equation.
        axes: Positions of the new axes in the left operand.
    """

    spec: str
    axes: tuple[int, ...]


def _batched(axes: Spec, a: jax.Array, b: jax.Array) -> _Batched | None:
    """Axes of the right operand alone that the result has in front become a batch."""
    place = len(axes.batch)
    if not axes.out.startswith(axes.batch) or not axes.left.startswith(axes.batch):
        return None
    rest = axes.out[place:]
    front = rest[: next((i for i, c in enumerate(rest) if c not in axes.columns), 0)]
    sizes = dict(zip(axes.left + axes.right, a.shape + b.shape, strict=True))
    others = math.prod(sizes[c] for c in axes.columns if c not in front)
    summed = math.prod(sizes[c] for c in axes.summed)
    # What is repeated is then no larger than twice the result.
    if not front or summed > 2 * others:
        return None
    spec = f"{axes.batch}{front}{axes.left[place:]},{axes.right}->{axes.out}"
    more = tuple(sizes[c] for c in front)
    wide = jax.ShapeDtypeStruct((*a.shape[:place], *more, *a.shape[place:]), a.dtype)
    if not is_of_matrices(Spec.of(spec), wide, b):
        return None
    return _Batched(spec=spec, axes=tuple(range(place, place + len(front))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """A sum of the right operand by weights that the left one holds.

    Args:
        order: The left operand's axes in the order of the right one's.
        new: Axes of the right operand that the left one lacks.
        summed: Axes of the right operand that are summed over.
    """

    order: tuple[int, ...]
    new: tuple[int, ...]
    summed: tuple[int, ...]


def _weights(axes: Spec, a: jax.Array, b: jax.Array) -> _Weights | None:
    """Where no axis is the left operand's alone, each product has one row."""
    if axes.rows or not axes.summed or "".join(c for c in axes.right if c in axes.out) != axes.out:
        return None
    common = [c for c in axes.right if c in axes.left]
    return _Weights(
        order=tuple(axes.left.index(c) for c in common),
        new=tuple(i for i, c in enumerate(axes.right) if c not in axes.left),
        summed=tuple(i for i, c in enumerate(axes.right) if c in axes.summed),
    )


def _spread(how: _Weights, a: jax.Array) -> jax.Array:
    return jnp.expand_dims(widen(jnp.transpose(a, how.order)), how.new)


def _weighted_backward(
    how: _Weights, saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    g = jnp.expand_dims(g, how.summed)
    back = sorted(range(len(how.order)), key=how.order.__getitem__)
    da = jnp.transpose(reduce_sum(g * widen(b), how.new), back)
    return da.astype(a.dtype), (g * _spread(how, a)).astype(b.dtype)


@with_gradient(_weighted_backward, static=(0,))
def _weighted(how: _Weights, a: jax.Array, b: jax.Array) -> jax.Array:
    return reduce_sum(_spread(how, a) * widen(b), how.summed)


def _repeated(axes: Spec, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Operands whose batches are alike."""
    left, right = (
        dict(zip(*x, strict=True)) for x in ((axes.left, a.shape), (axes.right, b.shape))
    )
    sizes = {c: right[c] if left[c] == 1 else left[c] for c in axes.batch}
    a = jnp.broadcast_to(a, tuple((left | sizes).values()))
    return a, jnp.broadcast_to(b, tuple((right | sizes).values()))


def _folded(spec: str, g: jax.Array, other: jax.Array, x: jax.Array, wide: jax.Array) -> jax.Array:
    """The gradient of an operand: what its repetitions get is added up before it is rounded."""
    axes = tuple(i for i, n in enumerate(wide.shape) if n != x.shape[i])
    if not axes:
        return product(spec, g, other, x.dtype)
    return reduce_sum(product(spec, g, other), axes).reshape(x.shape).astype(x.dtype)


def _backward(spec: str, saved: tuple, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    axes = Spec.of(spec)
    g = g.astype(a.dtype)
    wide_a, wide_b = _repeated(axes, a, b)
    da = _folded(f"{axes.out},{axes.right}->{axes.left}", g, wide_b, a, wide_a)
    db = _folded(f"{axes.out},{axes.left}->{axes.right}", g, wide_a, b, wide_b)
    return da, db


@with_gradient(_backward, static=(0,))
def contract(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of two arrays summed over their common axes, narrow types accumulated in float32.

    The gradient is again a product of the operands' own dtype: autodiff of a widening
    ``dot_general`` would run it on float32 copies, which is several times slower.

    Args:
        spec: Axes as in einsum, e.g. ``"ni,oi->no"``. Every axis of an operand must occur
            in the other operand or in the result.
        a, b: Operands of one dtype. An axis of the batch that has length 1 in one of them is
            repeated.

    Returns:
        The product, float32 for bfloat16 and float16 operands, else of their dtype.
    """
    return product(spec, *_repeated(Spec.of(spec), a, b))


def _rounded_backward(spec: str, biased: bool, saved: tuple, g: jax.Array) -> tuple[jax.Array, ...]:
    sums = (reduce_sum(g, tuple(range(g.ndim - 1))),) if biased else ()
    return *_backward(spec, saved, g), *sums


@with_gradient(_rounded_backward, saves=lambda _y, _spec, _biased, a, b, *_: (a, b), static=(0, 1))
def rounded(spec: str, biased: bool, a: jax.Array, b: jax.Array, *bias: jax.Array) -> jax.Array:
    """:func:`contract`, rounded once to the operands' dtype, with a bias where there is one.

    Args:
        spec, a, b: As :func:`contract` takes them.
        biased: Whether there is a bias.
        bias: Added along the result's last axis, which is one of ``b`` alone.

    Returns:
        The product in the operands' dtype.
    """
    return product(spec, a, b, a.dtype, *bias)


def matmul_wide(a: jax.Array, b: jax.Array) -> jax.Array:
    """``torch.matmul`` with the accumulator's dtype.

    Args:
        a, b: Operands of one dtype; vectors, matrices, or batches that broadcast.

    Returns:
        The product in ``compute_dtype``.
    """
    if a.ndim == 1 and b.ndim == 1:
        return contract("ij,jk->ik", a[None, :], b[:, None])[0, 0]
    if a.ndim == 1:
        return matmul_wide(a[None, :], b)[..., 0, :]
    if b.ndim == 1:
        return matmul_wide(a, b[:, None])[..., 0]
    if b.ndim == 2:
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        return contract("ij,jk->ik", rows, b).reshape(*a.shape[:-1], b.shape[-1])
    count = max(a.ndim, b.ndim)
    a, b = (jnp.expand_dims(x, tuple(range(count - x.ndim))) for x in (a, b))
    axes = string.ascii_uppercase[: count - 2]
    return contract(f"{axes}ij,{axes}jk->{axes}ik", a, b)
