"""Lowerings: Cholesky, QR and LU factors, and products of Householder reflectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.errors import LoweringError
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import adjoint, conjugate, is_complex
from emulator.ops.registry import of_matrices, op

_mm = jnp.matmul
Pair = tuple[jax.Array, jax.Array]


def _triu_of(x: jax.Array) -> jax.Array:
    upper = jnp.triu(x)
    if is_complex(x.dtype):  # a diagonal that is its own conjugate
        upper = jnp.where(jnp.eye(x.shape[-1], dtype=bool), upper.real, upper)
    return upper + adjoint(jnp.triu(x, 1))


# -- Cholesky ----------------------------------------------------------------


@of_matrices("aten.cholesky.default")
@op("aten.linalg_cholesky.default", complex=True, counted=False)
def cholesky(x: jax.Array, upper: bool = False) -> jax.Array:
    """Cholesky factor from one triangle; NaN where a matrix is not positive (torch raises)."""
    # The value reads one triangle; torch spreads the gradient over both.
    both = (x + adjoint(x)) / 2
    half = adjoint(x) if upper else x
    lower = jnp.tril(half) + adjoint(jnp.tril(half, -1))
    base = both + lax.stop_gradient(lower - both)
    factor = jnp.linalg.cholesky(base, symmetrize_input=False)
    return adjoint(factor) if upper else factor


@of_matrices("aten.linalg_cholesky_ex.default")
def cholesky_ex(x: jax.Array, *, upper: bool = False, check_errors: bool = False) -> Pair:
    """Cholesky factor, and the order of the first minor that is not positive (0 for none)."""
    del check_errors  # a program cannot raise
    lower = jnp.tril(x) if not upper else adjoint(jnp.triu(x))
    return cholesky(x, upper=upper), _bad_minor(lax.stop_gradient(lower))


def _bad_minor(lower: jax.Array) -> jax.Array:
    """The first pivot of a Cholesky decomposition that is not positive, counted from 1."""
    n = lower.shape[-1]

    def eliminate(k: jax.Array, state: Pair) -> Pair:
        rest, bad = state
        diagonal = jnp.diagonal(rest, axis1=-2, axis2=-1).real
        pivot = lax.dynamic_index_in_dim(diagonal, k, -1, False)
        column = lax.dynamic_index_in_dim(rest, k, -1, False)
        bad = jnp.where((bad == 0) & ~(pivot > 0), k + 1, bad)
        safe = jnp.where(pivot > 0, pivot, 1)[..., None, None]
        return rest - column[..., :, None] * conjugate(column)[..., None, :] / safe, bad

    both = lower + adjoint(jnp.tril(lower, -1))
    start = jnp.zeros(lower.shape[:-2], jnp.int32)
    return lax.fori_loop(0, n, eliminate, (both, start))[1].astype(jnp.int32)


# -- QR ----------------------------------------------------------------------


def _qr_backward(complete: bool, saved: tuple[jax.Array, ...], g: Pair) -> tuple[jax.Array]:
    """Seeger et al., "Auto-differentiating linear algebra", 2017; wide matrices by blocks."""
    a, q, r = saved
    gq, gr = conjugate(g[0]), conjugate(g[1])
    m, n = a.shape[-2:]
    if m >= n:
        if complete and m > n:
            raise LoweringError(
                op="aten.linalg_qr",
                source="",
                module="qr",
                reason="mode='complete' of a matrix with more rows than columns has no gradient",
            )
        return (conjugate(_square_qr_backward(q, r, gq, gr)),)
    # a = [a1 | a2], r = [x | y] with y = adjoint(q) @ a2
    a2, x, gx, gy = a[..., m:], r[..., :m], gr[..., :m], gr[..., m:]
    gq = gq + _mm(a2, adjoint(gy))
    left = _square_qr_backward(q, x, gq, gx)
    return (conjugate(jnp.concatenate([left, _mm(q, gy)], axis=-1)),)


def _square_qr_backward(q: jax.Array, r: jax.Array, gq: jax.Array, gr: jax.Array) -> jax.Array:
    """With gradients as torch has them, as what comes back."""
    inner = _triu_of(_mm(gr, adjoint(r)) - _mm(adjoint(q), gq))
    right = gq + _mm(q, inner)
    return lax.linalg.triangular_solve(
        r,
        right,
        left_side=False,
        lower=False,
        transpose_a=True,
        conjugate_a=is_complex(r.dtype),
    )


@with_gradient(_qr_backward, saves=lambda pair, a, _complete: (a, *pair), static=(1,))
def _qr(a: jax.Array, complete: bool) -> Pair:
    m, n = a.shape[-2:]
    k = m if complete else min(m, n)
    if a.size == 0:
        q = jnp.broadcast_to(jnp.eye(m, k, dtype=a.dtype), (*a.shape[:-1], k))
        return q, jnp.zeros((*a.shape[:-2], k, n), a.dtype)
    q, r = lax.linalg.qr(a, full_matrices=complete)
    return q, r


@of_matrices("aten.linalg_qr.default")
def qr(a: jax.Array, mode: str = "reduced") -> Pair:
    """QR decomposition; ``mode`` is ``reduced``, ``complete`` or ``r`` (no q).

    Args:
        a: Matrices ``(..., m, n)``.
        mode: Which parts, in which size.

    Returns:
        q and r.
    """
    if mode == "r":
        return jnp.zeros((0,), a.dtype), _qr(lax.stop_gradient(a), False)[1]
    return _qr(a, mode == "complete")


@op("aten.geqrf.default", differentiable=False, complex=True, counted=False)
def geqrf(a: jax.Array) -> Pair:
    """QR decomposition as LAPACK packs it: r above, reflectors below, and their factors."""
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
    packed, tau = jnp.linalg.qr(a, mode="raw")
    return packed.mT, tau


def _reflect(a: jax.Array, tau: jax.Array, c: jax.Array, reverse: bool) -> jax.Array:
    """Apply ``H_k = 1 - tau_k v_k v_k^H`` to ``c`` from the left, the first one first.

    Args:
        a: Vectors in the columns below the diagonal, ``(..., m, k)``.
        tau: Factors ``(..., k)``.
        c: ``(..., m, p)``.
        reverse: The last one first, which gives ``H_1 H_2 ... H_k @ c``.
    """
    k = tau.shape[-1]
    vectors = jnp.tril(a[..., :k], -1) + jnp.eye(a.shape[-2], k, dtype=a.dtype)

    def step(c: jax.Array, pair: Pair) -> tuple[jax.Array, None]:
        v, t = pair
        return c - t[..., None, None] * v[..., :, None] * _mm(conjugate(v)[..., None, :], c), None

    pairs = (jnp.moveaxis(vectors, -1, 0), jnp.moveaxis(tau, -1, 0))
    return lax.scan(step, c, pairs, reverse=reverse)[0]


@of_matrices("aten.linalg_householder_product.default", "aten.orgqr.default", reads=(0, 1))
def householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    """The first columns of a product of Householder reflectors."""
    eye = jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    return _reflect(a, tau, eye, True)


@of_matrices("aten.ormqr.default", reads=(0, 1, 2))
def ormqr(
    a: jax.Array, tau: jax.Array, other: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    """Product of ``q`` (or its adjoint), given by reflectors, and a matrix."""
    if left:
        return _reflect(a, conjugate(tau) if transpose else tau, other, not transpose)
    # other @ q is the adjoint of adjoint(q) @ adjoint(other)
    return adjoint(_reflect(a, tau if transpose else conjugate(tau), adjoint(other), transpose))


# -- LU ----------------------------------------------------------------------


def _factor(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Packed factors, row exchanges counted from 1, and the permutation of the rows."""
    if a.size == 0:
        batch, (m, n) = a.shape[:-2], a.shape[-2:]
        pivots = jnp.zeros((*batch, min(m, n)), jnp.int32)
        return a, pivots, jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32), (*batch, m))
    packed, pivots, rows = lax.linalg.lu(a)
    return packed, (pivots + 1).astype(jnp.int32), rows


def _singular(packed: jax.Array) -> jax.Array:
    """The first zero on the diagonal of the upper factor, counted from 1; 0 for none."""
    zero = jnp.diagonal(packed, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0).astype(jnp.int32)


Lu = tuple[jax.Array, jax.Array, jax.Array]


def _check_pivot(op_name: str, a: jax.Array, pivot: bool) -> None:
    """Refuse what torch's CPU refuses, too; of nothing there is nothing to exchange."""
    if not pivot and a.size:
        raise LoweringError(
            op=op_name,
            source="",
            module="lu",
            reason="LU decomposition without pivoting (pivot=False) is not implemented; "
            "leave pivot at True",
        )


@of_matrices("aten.linalg_lu_factor_ex.default", "aten._lu_with_info.default")
def lu_factor_ex(a: jax.Array, pivot: bool = True, check_errors: bool = False) -> Lu:
    """Packed LU factors with partial pivoting, the exchanges, and where it is singular."""
    del check_errors  # a program cannot raise
    _check_pivot("aten.linalg_lu_factor_ex", a, pivot)
    packed, pivots, _ = _factor(a)
    return packed, pivots, _singular(packed)


@of_matrices("aten.linalg_lu_factor.default")
def lu_factor(a: jax.Array, *, pivot: bool = True) -> Pair:
    """See :func:`lu_factor_ex`."""
    packed, pivots, _ = lu_factor_ex(a, pivot=pivot)
    return packed, pivots


def split(packed: jax.Array) -> Pair:
    """The lower factor, with ones on the diagonal, and the upper one."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(packed[..., :, :k], -1) + jnp.eye(m, k, dtype=packed.dtype)
    return lower, jnp.triu(packed[..., :k, :])


def permutation(rows: jax.Array, dtype: object) -> jax.Array:
    """``p`` with ``a == p @ l @ u`` where row ``i`` of ``l @ u`` is row ``rows[i]`` of ``a``."""
    return jax.nn.one_hot(rows, rows.shape[-1], axis=-2, dtype=dtype)


@of_matrices("aten.linalg_lu.default")
def lu(a: jax.Array, *, pivot: bool = True) -> Lu:
    """LU decomposition ``p @ l @ u``; without pivoting there is no ``p``."""
    _check_pivot("aten.linalg_lu", a, pivot)
    packed, _, rows = _factor(a)
    lower, upper = split(packed)
    return permutation(rows, a.dtype) if pivot else jnp.zeros((0,), a.dtype), lower, upper


def rows_of(pivots: jax.Array, m: int) -> jax.Array:
    """The order of ``m`` rows after exchanges counted from 1."""
    if pivots.shape[-1] == 0:
        return jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32), (*pivots.shape[:-1], m))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, m)


@op("aten.lu_unpack.default", reads=(1,), moves=True)
def lu_unpack(
    packed: jax.Array, pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> Lu:
    """Permutation and factors of packed ones; empty where they are not wanted.

    Pivots of an empty batch exchange no rows of any matrix, as torch has it.
    """
    none = jnp.zeros((0,), packed.dtype)
    lower, upper = split(packed) if unpack_data else (none, none)
    if not unpack_pivots:
        return none, lower, upper
    *batch, m, n = packed.shape
    if 0 in pivots.shape[:-1]:
        pivots = jnp.zeros((*batch, 0), pivots.dtype)
    elif pivots.shape != (*batch, min(m, n)):
        # torch reads or writes past the end of one of them, or leaves matrices out
        raise LoweringError(
            op="aten.lu_unpack",
            source="",
            module="lu_unpack",
            reason=f"the pivots have shape {pivots.shape}; packed factors of shape "
            f"{packed.shape} want {(*batch, min(m, n))}",
        )
    return permutation(rows_of(pivots, m), packed.dtype), lower, upper
