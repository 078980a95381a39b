"""Lowerings: special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from emulator.ops._promote import elementwise
from emulator.ops.registry import op

Operand = Any
"""An array or a python scalar."""


def _float_function(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def lower(x: jax.Array) -> jax.Array:
        return elementwise(fn, x, to_float=True)

    return lower


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _polygamma(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return special.digamma(x)
    if n == 1:
        return _trigamma(x)
    order = np.asarray(n + 1, x.dtype)
    return (-1) ** (n + 1) * math.factorial(n) * special.zeta(order, x)


@_polygamma.defjvp
def _(n: int, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _polygamma(n, x), dx * _polygamma(n + 1, x)


def _trigamma(x: jax.Array) -> jax.Array:
    """Reflection, six steps of recurrence and the asymptotic series, as torch computes it."""
    low = x < 0.5
    sine = lax.sin(math.pi * jnp.where(low, x, 0.5))
    z = jnp.where(low, 1 - x, x)
    total = jnp.zeros_like(x)
    for _ in range(6):
        total = total + 1 / (z * z)
        z = z + 1
    w = 1 / (z * z)
    total = total + (1 + 1 / (2 * z) + w * (1 / 6 - w * (1 / 30 - w * (1 / 42)))) / z
    return jnp.where(low, math.pi**2 / (sine * sine) - total, total)


_FUNCTIONS: tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...] = (
    (("lgamma", "special_gammaln"), special.gammaln),
    (("digamma", "special_digamma", "special_psi"), partial(_polygamma, 0)),
    (("special_entr",), special.entr),
    (("special_erfcx",), special.erfcx),
    (("special_ndtr",), special.ndtr),
    (("special_ndtri",), special.ndtri),
    (("special_log_ndtr",), special.log_ndtr),
    (("i0", "special_i0"), special.i0),
    (("special_i0e",), special.i0e),
    (("special_i1",), special.i1),
    (("special_i1e",), special.i1e),
)
for _names, _fn in _FUNCTIONS:
    op(*(f"aten.{n}.default" for n in _names), reads=(0,), cheap=True)(_float_function(_fn))


@op("aten.polygamma.default", reads=(1,), cheap=True)
def polygamma(n: int, x: jax.Array) -> jax.Array:
    """The ``n``-th derivative of digamma."""
    return elementwise(partial(_polygamma, n), x, to_float=True)


@op("aten.special_polygamma.default", reads=(1,), cheap=True)
def special_polygamma(n: int, x: jax.Array) -> jax.Array:
    """See :func:`polygamma`."""
    return polygamma(n, x)


@op("aten.mvlgamma.default", "aten.special_multigammaln.default", reads=(0,), cheap=True)
def mvlgamma(x: jax.Array, p: int) -> jax.Array:
    """The logarithm of the ``p``-dimensional gamma function."""
    return elementwise(lambda a: special.multigammaln(a, p), x, to_float=True)


@op("aten.igamma.default", "aten.special_gammainc.default", reads=(0, 1), cheap=True)
def igamma(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized lower incomplete gamma function."""
    return elementwise(special.gammainc, a, x)


@op("aten.igammac.default", "aten.special_gammaincc.default", reads=(0, 1), cheap=True)
def igammac(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized upper incomplete gamma function."""
    return elementwise(special.gammaincc, a, x)


@op(
    *("aten.special_zeta.default", "aten.special_zeta.self_scalar"),
    "aten.special_zeta.other_scalar",
    reads=(0, 1),
    cheap=True,
)
def zeta(x: Operand, other: Operand) -> jax.Array:
    """Hurwitz zeta function."""
    return elementwise(special.zeta, x, other, to_float=True)
