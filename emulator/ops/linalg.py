"""Lowerings of dense linear algebra: powers, inverses, factors, determinants."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from emulator.ops import _gemm as gemm
from emulator.ops._promote import conjugate, is_complex
from emulator.ops.registry import op


@op("aten.linalg_matrix_power.default", "aten.matrix_power.default", complex=True, counted=False)
def matrix_power(x: jax.Array, n: int) -> jax.Array:
    """Integer power of square matrices; a negative one inverts."""
    if n == 0:
        return jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    base = inv(x) if n < 0 else x
    result: jax.Array | None = None
    for bit in reversed(bin(abs(n))[2:]):
        if bit == "1":
            result = base if result is None else gemm.matmul(result, base).astype(x.dtype)
        base = gemm.matmul(base, base).astype(x.dtype)
    assert result is not None  # n is not 0, so some bit is set
    return result


@op("aten.linalg_inv.default", "aten.inverse.default", complex=True, counted=False)
def inv(x: jax.Array) -> jax.Array:
    """Inverse of square matrices; not finite where one is singular (torch raises)."""
    return jnp.linalg.inv(x)


@op("aten.linalg_det.default", "aten.det.default", complex=True, counted=False)
def det(x: jax.Array) -> jax.Array:
    """Determinants."""
    if x.shape[-1] == 0:
        return jnp.ones(x.shape[:-2], x.dtype)
    return jnp.linalg.det(x)


@op("aten.linalg_slogdet.default", "aten.slogdet.default", complex=True, counted=False)
def slogdet(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sign and logarithm of the absolute value of determinants."""
    sign, log = jnp.linalg.slogdet(x)
    return sign if is_complex(x.dtype) else jax.lax.stop_gradient(sign), log


@op("aten.logdet.default", complex=True, counted=False)
def logdet(x: jax.Array) -> jax.Array:
    """Logarithm of determinants; NaN where one is negative."""
    sign, log = jnp.linalg.slogdet(x)
    if is_complex(x.dtype):
        return jnp.log(sign) + log
    return jnp.where(sign < 0, jnp.nan, log).astype(x.dtype)


@op("aten.linalg_solve.default", complex=True, counted=False)
def solve(a: jax.Array, b: jax.Array, *, left: bool = True) -> jax.Array:
    """Solution of ``a @ x = b``, or of ``x @ a = b``; b may be a batch of vectors."""
    if b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1]):
        return jnp.linalg.solve(a, b[..., None])[..., 0]
    if not left:
        return jnp.linalg.solve(a.mT, b.mT).mT
    return jnp.linalg.solve(a, b)


@op("aten.linalg_solve_triangular.default", complex=True, counted=False)
def triangular(
    a: jax.Array, b: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    """Solution of ``a @ x = b`` (``x @ a = b``) that reads one triangle of a."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, batch + a.shape[-2:])
    b = jnp.broadcast_to(b, batch + b.shape[-2:])
    if left:
        return solve_triangular(a, b, lower=not upper, unit_diagonal=unitriangular)
    return solve_triangular(a.mT, b.mT, lower=upper, unit_diagonal=unitriangular).mT


@op("aten.linalg_cholesky.default", complex=True, counted=False)
def cholesky(x: jax.Array, *, upper: bool = False) -> jax.Array:
    """Cholesky factor from one triangle; NaN where a matrix is not positive (torch raises)."""
    # The value reads one triangle; torch spreads the gradient over both.
    adjoint = conjugate(x.mT)
    both = (x + adjoint) / 2
    half = adjoint if upper else x
    lower = jnp.tril(half) + conjugate(jnp.tril(half, -1).mT)
    base = both + jax.lax.stop_gradient(lower - both)
    factor = jnp.linalg.cholesky(base, symmetrize_input=False)
    return conjugate(factor.mT) if upper else factor


@op("aten.linalg_cross.default", reads=(0, 1), complex=True, flops=("results", 3))
def cross(a: jax.Array, b: jax.Array, *, dim: int = -1) -> jax.Array:
    """Cross product of vectors of three entries along ``dim``."""
    a, b = jnp.broadcast_arrays(a, b)
    return jnp.cross(a, b, axis=dim)
