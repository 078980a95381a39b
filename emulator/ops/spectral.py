"""Lowerings: singular values, eigenvalues of symmetric matrices, and what follows from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.ops._gradient import saves_result, with_gradient
from emulator.ops._promote import adjoint, conjugate, is_complex, real_type
from emulator.ops.registry import of_matrices

_mm = jnp.matmul


def _divide(a: jax.Array, gaps: jax.Array) -> jax.Array:
    """``a / gaps`` off the diagonal; 0 where ``a`` is, so that equal values do no harm unasked."""
    n = gaps.shape[-1]
    gaps = jnp.where(jnp.eye(n, dtype=bool), 1, gaps)
    return jnp.where(a == 0, 0, a / jnp.where(a == 0, 1, gaps))


def _diagonal(x: jax.Array) -> jax.Array:
    """Vectors as diagonal matrices."""
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def _as_finite(a: jax.Array, read: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Zeros for each matrix of which something read is not finite: LAPACK may never end there.

    Args:
        a: Matrices ``(..., m, n)``.
        read: What is read of them, of the same shape.

    Returns:
        The matrices, and which are as they were, ``(..., 1, 1)``.
    """
    finite = jnp.isfinite(read).all(axis=(-2, -1), keepdims=True)
    return jnp.where(finite, a, 0), finite


def _or_nan(finite: jax.Array, x: jax.Array) -> jax.Array:
    """``x`` where a matrix was finite, else NaN; torch raises there, or gives NaN."""
    return jnp.where(finite, x, jnp.nan).astype(x.dtype)


Factors = tuple[jax.Array, jax.Array, jax.Array]


def _svd_forward(a: jax.Array, full: bool) -> tuple[Factors, Factors]:
    u, s, vh = _svd(a, full)
    k = s.shape[-1]
    return (u, s, vh), (u[..., :, :k], s, vh[..., :k, :])


def _svd_backward(full: bool, saved: Factors, cotangents: Factors) -> tuple[jax.Array]:
    """Townsend, "Differentiating the singular value decomposition", 2016.

    Of complex matrices torch's ``svd_backward``; gradients in between are as torch has them.
    Only the first ``min(m, n)`` vectors are functions of the matrix; the gradient of others
    is left out.
    """
    del full
    u, s, vh = saved
    k = s.shape[-1]
    gu, gs, gvh = cotangents
    gu, gvh = conjugate(gu[..., :, :k]), conjugate(gvh[..., :k, :])
    gaps = s[..., None, :] ** 2 - s[..., :, None] ** 2
    skew_u = _mm(adjoint(u), gu)
    skew_v = _mm(vh, adjoint(gvh))
    inner = _divide(skew_u - adjoint(skew_u), gaps) * s[..., None, :]
    inner = inner + s[..., :, None] * _divide(skew_v - adjoint(skew_v), gaps)
    inner = inner + _diagonal(gs)
    if is_complex(u.dtype):
        phases = jnp.diagonal(skew_u - adjoint(skew_u), axis1=-2, axis2=-1)
        inner = inner + _diagonal(phases / (2 * s))
    ga = _mm(_mm(u, inner), vh)
    if u.shape[-2] > k:
        ga = ga + _mm((gu - _mm(u, skew_u)) / s[..., None, :], vh)
    if vh.shape[-1] > k:
        ga = ga + _mm(u, (gvh - _mm(adjoint(skew_v), vh)) / s[..., :, None])
    return (conjugate(ga),)


@with_gradient(_svd_backward, forward=_svd_forward, static=(1,))
def _svd(a: jax.Array, full: bool) -> Factors:
    if 0 in a.shape:
        return _empty_svd(a, full)
    a, finite = _as_finite(a, a)
    u, s, vh = jnp.linalg.svd(a, full_matrices=full)
    return _or_nan(finite, u), _or_nan(finite[..., 0], s), _or_nan(finite, vh)


def _empty_svd(a: jax.Array, full: bool) -> Factors:
    *batch, m, n = a.shape
    k = min(m, n)
    u = jnp.eye(m, m if full else k, dtype=a.dtype)
    vh = jnp.eye(n if full else k, n, dtype=a.dtype)
    return (
        jnp.broadcast_to(u, (*batch, *u.shape)),
        jnp.zeros((*batch, k), real_type(a.dtype)),
        jnp.broadcast_to(vh, (*batch, *vh.shape)),
    )


@of_matrices("aten._linalg_svd.default")
def svd(
    a: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Factors:
    """Singular value decomposition ``u @ diag(s) @ vh``, values descending.

    Args:
        a: Matrices ``(..., m, n)``.
        full_matrices: Square ``u`` and ``vh``.
        compute_uv: False gives empty vectors.
        driver: Ignored: there is one algorithm.
    """
    del driver
    u, s, vh = _svd(a, full_matrices)
    if compute_uv:
        return u, s, vh
    return jnp.zeros((0,), a.dtype), s, jnp.zeros((0,), a.dtype)


Pair = tuple[jax.Array, jax.Array]


def _eigh_backward(lower: bool, saved: Pair, cotangents: Pair) -> tuple[jax.Array]:
    """Giles, "Collected matrix derivative results", 2008; not symmetrised, as in torch."""
    del lower
    values, vectors = saved
    gvalues, gvectors = cotangents[0], conjugate(cotangents[1])
    gaps = values[..., None, :] - values[..., :, None]
    inner = _divide(_mm(adjoint(vectors), gvectors), gaps)
    n = values.shape[-1]
    inner = jnp.where(jnp.eye(n, dtype=bool), 0, inner) + _diagonal(gvalues)
    return (conjugate(_mm(_mm(vectors, inner), adjoint(vectors))),)


@with_gradient(_eigh_backward, saves=saves_result, static=(1,))
def _eigh(a: jax.Array, lower: bool) -> Pair:
    if a.size == 0:
        return jnp.zeros(a.shape[:-1], real_type(a.dtype)), jnp.zeros(a.shape, a.dtype)
    a, finite = _as_finite(a, jnp.tril(a) if lower else jnp.triu(a))
    values, vectors = jnp.linalg.eigh(a, UPLO="L" if lower else "U", symmetrize_input=False)
    return _or_nan(finite[..., 0], values), _or_nan(finite, vectors)


@of_matrices("aten._linalg_eigh.default", "aten.linalg_eigh.default")
def eigh(a: jax.Array, UPLO: str = "L", compute_v: bool = True) -> Pair:
    """Eigenvalues, ascending, and vectors of symmetric matrices; reads one triangle."""
    values, vectors = _eigh(a, UPLO.upper() == "L")
    return values, vectors if compute_v else jnp.zeros((0,), a.dtype)


def _pinv_backward(hermitian: bool, saved: Pair, g: jax.Array) -> tuple[jax.Array, None]:
    """Golub and Pereyra, "The differentiation of pseudo-inverses", 1973."""
    del hermitian
    a, p = saved
    g = conjugate(g)
    gt, pt = adjoint(g), adjoint(p)
    ga = -_mm(_mm(pt, g), pt)
    ga = ga + _mm(gt - _mm(a, _mm(p, gt)), _mm(p, pt))
    ga = ga + _mm(_mm(pt, p), gt - _mm(_mm(gt, p), a))
    return conjugate(ga), None


@with_gradient(_pinv_backward, saves=lambda p, a, *_: (a, p), static=(2,))
def _pinv(a: jax.Array, cut: jax.Array, hermitian: bool) -> jax.Array:
    if hermitian:
        values, vectors = _eigh(a, True)
        mask = jnp.abs(values) > cut[..., None]
        inverse = jnp.where(mask, 1 / jnp.where(mask, values, 1), 0)
        return _mm(vectors * inverse[..., None, :], adjoint(vectors))
    u, s, vh = _svd(a, False)
    mask = s > cut[..., None]
    inverse = jnp.where(mask, 1 / jnp.where(mask, s, 1), 0)
    return _mm(adjoint(vh) * inverse[..., None, :], adjoint(u))


def _singular_values(a: jax.Array, hermitian: bool) -> jax.Array:
    return jnp.abs(_eigh(a, True)[0]) if hermitian else _svd(a, False)[1]


def pseudo_inverse(
    a: jax.Array,
    atol: jax.Array | float | None,
    rtol: jax.Array | float | None,
    hermitian: bool,
) -> jax.Array:
    """Moore-Penrose inverse; values not above ``max(atol, rtol * largest)`` count as zero.

    It is computed in 64 bits: its gradient has three products by the inverse, whose condition
    multiplies rounding.

    Args:
        a: Matrices ``(..., m, n)``.
        atol: 0 by default.
        rtol: ``max(m, n)`` times the dtype's epsilon by default, 0 beside a positive ``atol``.
        hermitian: Whether ``a`` is symmetric.

    Returns:
        Matrices ``(..., n, m)``.
    """
    if 0 in a.shape:
        return jnp.zeros(a.mT.shape, a.dtype)
    default = max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps)
    dtype = a.dtype
    a = a.astype(jnp.complex128 if is_complex(dtype) else jnp.float64)
    real = real_type(a.dtype)
    absolute = jnp.asarray(0.0 if atol is None else atol, real)
    if rtol is None:
        relative = jnp.where(absolute > 0, 0, default).astype(real)
    else:
        relative = jnp.asarray(rtol, real)
    batch = jnp.broadcast_shapes(a.shape[:-2], absolute.shape, relative.shape)
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    largest = jnp.max(_singular_values(jax.lax.stop_gradient(a), hermitian), axis=-1)
    return _pinv(a, jnp.maximum(absolute, relative * largest), hermitian).astype(dtype)


@of_matrices("aten.linalg_pinv.atol_rtol_tensor", "aten.linalg_pinv.atol_rtol_float")
def pinv(
    a: jax.Array,
    *,
    atol: jax.Array | float | None = None,
    rtol: jax.Array | float | None = None,
    hermitian: bool = False,
) -> jax.Array:
    """See :func:`pseudo_inverse`."""
    return pseudo_inverse(a, atol, rtol, hermitian)


@of_matrices("aten.linalg_pinv.default", "aten.linalg_pinv.rcond_tensor", "aten.pinverse.default")
def pinv_rcond(
    a: jax.Array, rcond: jax.Array | float = 1e-15, hermitian: bool = False
) -> jax.Array:
    """The pseudo-inverse with a relative threshold."""
    return pseudo_inverse(a, 0.0, rcond, hermitian)
