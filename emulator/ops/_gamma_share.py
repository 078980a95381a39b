"""Shares of a gamma function of a large order next to its argument, where series are too long."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["expanded", "is_expanded"]

_ORDER = 200.0
_WIDTH = 0.3
"""How far from the order, as a share of it, an argument may lie."""

_COEFFICIENTS = (
    (
        *(-3.3333333333333333e-1, 8.3333333333333333e-2, -1.4814814814814815e-2),
        *(1.1574074074074074e-3, 3.527336860670194e-4, -1.7875514403292181e-4),
        *(3.9192631785224378e-5, -2.1854485106799922e-6, -1.85406221071516e-6),
        8.296711340953086e-7,
    ),
    (
        *(-1.8518518518518519e-3, -3.4722222222222222e-3, 2.6455026455026455e-3),
        *(-9.9022633744855967e-4, 2.0576131687242798e-4, -4.0187757201646091e-7),
        *(-1.8098550334489978e-5, 7.6491609160811101e-6),
    ),
    (4.1335978835978836e-3, -2.6813271604938272e-3, 7.7160493827160494e-4),
)
"""Of Temme's uniform expansion, by powers of one over the order and of ``eta``."""

_TERMS = 14
_SMALL = 0.05


def is_expanded(a: jax.Array, x: jax.Array) -> jax.Array:
    """Where the expansion holds: orders above 200, arguments near them."""
    return (a > _ORDER) & (jnp.abs(x - a) < _WIDTH * a)


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def expanded(a: jax.Array, x: jax.Array, *, lower: bool) -> jax.Array:
    """The share below ``x``, or above.

    N. M. Temme, "The asymptotic expansion of the incomplete gamma functions", 1979. Computed in
    float64: the order itself is large, and what counts is how far ``x`` is from it.

    Args:
        a: The order.
        x: The argument, of its shape and type.
        lower: Whether the share below is wanted.
    """
    dtype = a.dtype
    good = is_expanded(a, x)
    a = jnp.where(good, a, 2 * _ORDER).astype(np.float64)
    x = jnp.where(good, x, 2 * _ORDER).astype(np.float64)
    mu = (x - a) / a
    # mu - log(1 + mu), whose digits cancel where mu is small.
    signs = (0.0, 0.0, *((-1.0) ** k / k for k in range(2, _TERMS)))
    gap = jnp.where(jnp.abs(mu) < _SMALL, _polynomial(signs, mu), mu - jnp.log1p(mu))
    eta = jnp.sign(mu) * jnp.sqrt(2 * gap)
    rest = jnp.zeros_like(a)
    for k, coefficients in enumerate(_COEFFICIENTS):
        rest = rest + _polynomial(coefficients, eta) * a**-k
    rest = rest * jnp.exp(-a * gap) / jnp.sqrt(2 * math.pi * a)
    turned = -1.0 if lower else 1.0
    share = 0.5 * jax.lax.erfc(turned * eta * jnp.sqrt(a / 2)) + turned * rest
    return share.astype(dtype)
