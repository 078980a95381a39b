"""Lowerings of dense linear algebra: powers, inverses, determinants, solutions of systems."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import expm, solve_triangular

from emulator.ops._gradient import with_gradient
from emulator.ops._promote import adjoint, conjugate, is_complex
from emulator.ops.factor import lu_factor_ex, rows_of, split
from emulator.ops.registry import of_matrices, op


@op("aten.linalg_matrix_power.default", "aten.matrix_power.default", complex=True, counted=False)
def matrix_power(x: jax.Array, n: int) -> jax.Array:
    """Integer power of square matrices; a negative one inverts."""
    return jnp.linalg.matrix_power(x, n)


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
    a, b = _batched(a, b)
    if left:
        return solve_triangular(a, b, lower=not upper, unit_diagonal=unitriangular)
    return solve_triangular(a.mT, b.mT, lower=upper, unit_diagonal=unitriangular).mT


@op("aten.linalg_cross.default", reads=(0, 1), complex=True, flops=("results", 3))
def cross(a: jax.Array, b: jax.Array, *, dim: int = -1) -> jax.Array:
    """Cross product of vectors of three entries along ``dim``."""
    a, b = jnp.broadcast_arrays(a, b)
    return jnp.cross(a, b, axis=dim)


_mm = jnp.matmul
Pair = tuple[jax.Array, jax.Array]


def _batched(a: jax.Array, b: jax.Array) -> Pair:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        jnp.broadcast_to(a, batch + a.shape[-2:]),
        jnp.broadcast_to(b, batch + b.shape[-2:]),
    )


def _cholesky_solve_backward(upper: bool, saved: Pair, g: jax.Array) -> Pair:
    """As in torch, the unread triangle of the factor has a gradient, too."""
    factor, x = saved
    gb = _cholesky_solve(conjugate(g), factor, upper)
    common = _mm(gb, adjoint(x))
    common = common + adjoint(common)
    gfactor = -_mm(factor, common) if upper else -_mm(common, factor)
    return conjugate(gb), conjugate(gfactor)


@with_gradient(_cholesky_solve_backward, saves=lambda x, _b, factor, *_: (factor, x), static=(2,))
def _cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool) -> jax.Array:
    lower = adjoint(jnp.triu(factor)) if upper else jnp.tril(factor)
    y = solve_triangular(lower, b, lower=True)
    return solve_triangular(adjoint(lower), y, lower=False)


@of_matrices("aten.cholesky_solve.default", reads=(0, 1))
def cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool = False) -> jax.Array:
    """Solution of ``(l @ l.mT) @ x = b``, or ``(u.mT @ u) @ x = b``."""
    factor, b = _batched(factor, b)
    return _cholesky_solve(b, factor, upper)


def _cholesky_inverse_backward(upper: bool, saved: Pair, g: jax.Array) -> tuple[jax.Array]:
    factor, x = saved
    g = conjugate(g)
    common = _mm(_mm(x, g + adjoint(g)), x)
    return (conjugate(-_mm(factor, common) if upper else -_mm(common, factor)),)


@with_gradient(_cholesky_inverse_backward, saves=lambda x, factor, *_: (factor, x), static=(1,))
def _cholesky_inverse(factor: jax.Array, upper: bool) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return _cholesky_solve(eye, factor, upper)


@of_matrices("aten.cholesky_inverse.default")
def cholesky_inverse(factor: jax.Array, upper: bool = False) -> jax.Array:
    """Inverse of ``l @ l.mT``, or of ``u.mT @ u``."""
    return _cholesky_inverse(factor, upper)


@of_matrices("aten.triangular_solve.default", reads=(0, 1))
def triangular_solve(
    b: jax.Array,
    a: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Pair:
    """Solution of ``a @ x = b`` that reads one triangle of a, and a."""
    a, b = _batched(a, b)
    turned = a.mT if transpose else a
    x = triangular(turned, b, upper=upper != transpose, unitriangular=unitriangular)
    return x, a


@of_matrices("aten.linalg_lu_solve.default", reads=(0, 1, 2))
def lu_solve(
    packed: jax.Array,
    pivots: jax.Array,
    b: jax.Array,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> jax.Array:
    """Solution of ``a @ x = b`` (``x @ a = b``) from the packed factors of a."""
    packed = conjugate(packed) if adjoint else packed
    if not left:
        return _lu_solve(packed, pivots, b.mT, transposed=not adjoint).mT
    return _lu_solve(packed, pivots, b, transposed=adjoint)


def _lu_solve(packed: jax.Array, pivots: jax.Array, b: jax.Array, transposed: bool) -> jax.Array:
    rows = rows_of(pivots, packed.shape[-2])
    packed, b = _batched(packed, b)
    rows = jnp.broadcast_to(rows, b.shape[:-1])
    lower, upper = split(packed)
    if transposed:
        y = solve_triangular(upper.mT, b, lower=True)
        y = solve_triangular(lower.mT, y, lower=False, unit_diagonal=True)
        back = jnp.argsort(rows, axis=-1)
        return jnp.take_along_axis(y, back[..., None], axis=-2)
    y = jnp.take_along_axis(b, rows[..., None], axis=-2)
    y = solve_triangular(lower, y, lower=True, unit_diagonal=True)
    return solve_triangular(upper, y, lower=False)


@of_matrices("aten.lu_solve.default", reads=(0, 1, 2))
def lu_solve_of(b: jax.Array, packed: jax.Array, pivots: jax.Array) -> jax.Array:
    """See :func:`lu_solve`."""
    return lu_solve(packed, pivots, b)


@of_matrices("aten._linalg_solve_ex.default", reads=(0, 1))
def solve_with_factors(
    a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Solution of a linear system, the packed factors, the exchanges, where it is singular."""
    packed, pivots, info = lu_factor_ex(jax.lax.stop_gradient(a), check_errors=check_errors)
    return solve(a, b, left=left), packed, pivots, info


@of_matrices("aten.linalg_solve_ex.default", reads=(0, 1))
def solve_ex(a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False) -> Pair:
    """Solution of a linear system, and where it is singular."""
    x, _, _, info = solve_with_factors(a, b, left=left, check_errors=check_errors)
    return x, info


@of_matrices("aten.linalg_inv_ex.default")
def inv_ex(a: jax.Array, *, check_errors: bool = False) -> Pair:
    """Inverse, and where it is singular."""
    info = lu_factor_ex(jax.lax.stop_gradient(a), check_errors=check_errors)[2]
    return inv(a), info


@of_matrices("aten._linalg_det.default")
def det_with_factors(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Determinants, the packed factors, the exchanges."""
    packed, pivots, _ = lu_factor_ex(jax.lax.stop_gradient(a))
    return det(a), packed, pivots


@of_matrices("aten._linalg_slogdet.default")
def slogdet_with_factors(
    a: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Sign and logarithm of determinants, the packed factors, the exchanges."""
    packed, pivots, _ = lu_factor_ex(jax.lax.stop_gradient(a))
    return *slogdet(a), packed, pivots


_MAX_SQUARINGS = 64
"""Enough for any norm whose exponential is finite; jax gives NaN above its default of 16."""


@of_matrices("aten.linalg_matrix_exp.default", "aten.matrix_exp.default")
def matrix_exp(a: jax.Array) -> jax.Array:
    """Exponential of square matrices, in 64 bits: squaring doubles rounding errors each time."""
    if a.size == 0:
        return a
    wide = jnp.complex128 if is_complex(a.dtype) else jnp.float64
    return expm(a.astype(wide), max_squarings=_MAX_SQUARINGS).astype(a.dtype)
