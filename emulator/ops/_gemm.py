"""The one matrix product behind linear, matmul, attention and recurrent ops."""

from __future__ import annotations

import math
import string

import jax
import jax.numpy as jnp

from emulator.kernels.products import product
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import reduce_sum


def _backward(spec: str, saved: tuple, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    g = g.astype(a.dtype)
    da = product(f"{out},{right}->{left}", g, b, a.dtype)
    db = product(f"{out},{left}->{right}", g, a, b.dtype)
    return da, db


@with_gradient(_backward, static=(0,))
def contract(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Product of two arrays summed over their common axes, narrow types accumulated in float32.

    The gradient is again a product of the operands' own dtype: autodiff of a widening
    ``dot_general`` would run it on float32 copies, which is several times slower.

    Args:
        spec: Axes as in einsum, e.g. ``"ni,oi->no"``. Every axis of an operand must occur
            in the other operand or in the result.
        a, b: Operands of one dtype.

    Returns:
        The product, float32 for bfloat16 and float16 operands, else of their dtype.
    """
    return product(spec, a, b)


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


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """``torch.matmul`` with the accumulator's dtype.

    Args:
        a, b: Operands of one dtype; vectors, matrices, or batches that broadcast.

    Returns:
        The product in ``compute_dtype``.
    """
    if a.ndim == 1 and b.ndim == 1:
        return contract("ij,jk->ik", a[None, :], b[:, None])[0, 0]
    if a.ndim == 1:
        return matmul(a[None, :], b)[..., 0, :]
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    if b.ndim == 2:
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        return contract("ij,jk->ik", rows, b).reshape(*a.shape[:-1], b.shape[-1])
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, batch + a.shape[-2:])
    b = jnp.broadcast_to(b, batch + b.shape[-2:])
    axes = string.ascii_uppercase[: len(batch)]
    return contract(f"{axes}ij,{axes}jk->{axes}ik", a, b)
