"""Lowerings: orthogonal polynomials of a degree that is data, by their recurrences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._promote import elementwise
from emulator.ops.registry import op

MOST_DEGREE = 2**16
"""Above this degree a recurrence gives NaN instead of running on (torch has no such bound, but
for Hermite's). Where a formula or an end of the interval gives the value, there is no bound."""

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""``(x, k, p, q)`` to the polynomial after ``q``, where ``p`` comes before it."""


def _recur(x: jax.Array, n: jax.Array, first: jax.Array, step: Step, start: int) -> jax.Array:
    """Polynomials of degree ``n`` from those of degree 0 (which is 1) and 1.

    Args:
        x: Where.
        n: Degrees, int64, of the shape of ``x``; negative ones give 0.
        first: The polynomial of degree 1.
        step: The recurrence.
        start: ``k`` of the first step; the last one has ``n - 2 + start``.

    Returns:
        Values of the shape of ``x``; NaN for degrees above :data:`MOST_DEGREE`.
    """
    too_high = n > MOST_DEGREE
    n = jnp.where(too_high, 0, n)

    def goes_on(state: tuple[jax.Array, ...]) -> jax.Array:
        k, _, q = state
        return jnp.any((k - start + 2 <= n) & ~jnp.isnan(q))

    def advance(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        k, p, q = state
        more = k - start + 2 <= n
        r = step(x, k.astype(x.dtype), p, q)
        return k + 1, jnp.where(more, q, p), jnp.where(more, r, q)

    begin = (jnp.asarray(start, n.dtype), jnp.ones_like(x), first)
    _, _, q = lax.while_loop(goes_on, advance, begin)
    value = jnp.where(n < 0, 0, jnp.where(n == 0, 1, q))
    return jnp.where(too_high, jnp.nan, value).astype(x.dtype)


def _chebyshev_step(x: jax.Array, k: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
    return (x + x) * q - p


def _alternating(n: jax.Array, value: Any) -> jax.Array:
    return jnp.where(n % 2 == 0, value, -value)


def _chebyshev(
    x: jax.Array,
    n: jax.Array,
    angular_above: int,
    first: jax.Array,
    by_angle: jax.Array,
    ends: jax.Array,
) -> jax.Array:
    """A polynomial of Chebyshev's: by its recurrence, by an angle for high degrees.

    Args:
        x: Where.
        n: Degrees.
        angular_above: Between the ends of the interval, degrees above this go by the angle.
        first: The polynomial of degree 1.
        by_angle: What the formula of the angle gives.
        ends: What it is at -1 and 1.
    """
    angular = (n > angular_above) & (jnp.abs(x) < 1)
    edge = jnp.abs(x) == 1
    value = _recur(x, jnp.where(angular | edge, 0, n), first, _chebyshev_step, 2)
    value = jnp.where(edge, ends, jnp.where(angular, by_angle, value))
    return jnp.where(n < 0, 0, value).astype(x.dtype)


def _t(x: jax.Array, n: jax.Array, angular_above: int) -> jax.Array:
    by_angle = jnp.cos(n.astype(x.dtype) * jnp.arccos(x))
    ends = jnp.where(x > 0, 1, _alternating(n, 1))
    return _chebyshev(x, n, angular_above, x, by_angle, ends)


def _u(x: jax.Array, n: jax.Array, angular_above: int) -> jax.Array:
    m, a = (n + 1).astype(x.dtype), jnp.arccos(x)
    sine = jnp.sin(a)
    by_angle = jnp.where(sine != 0, jnp.sin(m * a) / sine, m * jnp.cos(m * a) / x)
    ends = jnp.where(x > 0, m, _alternating(n, m))
    return _chebyshev(x, n, angular_above, x + x, by_angle, ends)


def _v(x: jax.Array, n: jax.Array, angular_above: int) -> jax.Array:
    m, a = n.astype(x.dtype), jnp.arccos(x)
    ends = _alternating(n, m + m + 1)
    by_angle = jnp.cos((m + 0.5) * a) / jnp.cos(a / 2)
    by_angle = jnp.where(jnp.sin(a / 2) != 1, by_angle, ends)
    ends = jnp.where(x > 0, 1, ends)
    return _chebyshev(x, n, angular_above, x + x - 1, by_angle, ends)


def _w(x: jax.Array, n: jax.Array, angular_above: int) -> jax.Array:
    m, a = n.astype(x.dtype), jnp.arccos(x)
    ends = jnp.where(x > 0, m + m + 1, _alternating(n, 1))
    by_angle = jnp.sin((m + 0.5) * a) / jnp.sin(a / 2)
    by_angle = jnp.where(jnp.cos(a / 2) != 1, by_angle, ends)
    return _chebyshev(x, n, angular_above, x + x + 1, by_angle, ends)


def _limited(value: jax.Array, x: jax.Array, n: jax.Array) -> jax.Array:
    """Torch gives NaN above a degree that depends on the dtype."""
    return jnp.where(n > (512 if x.dtype == jnp.float64 else 128), jnp.nan, value)


def _hermite_h(x: jax.Array, n: jax.Array) -> jax.Array:
    n = jnp.minimum(n, 513)
    value = _recur(x, n, x + x, lambda x, k, p, q: (x + x) * q - (k + k) * p, 1)
    return _limited(value, x, n)


def _hermite_he(x: jax.Array, n: jax.Array) -> jax.Array:
    n = jnp.minimum(n, 513)
    return _limited(_recur(x, n, x, lambda x, k, p, q: x * q - k * p, 1), x, n)


def _laguerre(x: jax.Array, n: jax.Array) -> jax.Array:
    def step(x: jax.Array, k: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
        return cut((cut(((k + k) + (1 - x)) * q) - cut(k * p)) / (k + 1))

    # In float64, as XLA multiplies by a rounded inverse of k + 1, whose errors add up.
    # Products overflow where the type's own do.
    info = jnp.finfo(x.dtype)
    cut = partial(lax.reduce_precision, exponent_bits=info.nexp, mantissa_bits=info.nmant)
    wide = x.astype(np.float64)
    steps = jnp.where(x == 0, jnp.minimum(n, 0), n)
    return _recur(wide, steps, 1 - wide, step, 1).astype(x.dtype)


def _legendre(x: jax.Array, n: jax.Array) -> jax.Array:
    def step(x: jax.Array, k: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
        return ((k + k + 1) * x * q - k * p) / (k + 1)

    edge = jnp.abs(x) == 1
    value = _recur(x, jnp.where(edge, jnp.minimum(n, 0), n), x, step, 1)
    ends = jnp.where(x > 0, 1, _alternating(n, 1))
    return jnp.where(edge & (n >= 0), ends, value).astype(x.dtype)


def _plain(kind: Callable[..., jax.Array], above: int) -> Callable[..., jax.Array]:
    return lambda x, n: kind(x, n, above)


def _shifted(kind: Callable[..., jax.Array], above: int) -> Callable[..., jax.Array]:
    return lambda x, n: kind(x + x - 1, n, above)


_FUNCTIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "chebyshev_polynomial_t": _plain(_t, 6),
    "chebyshev_polynomial_u": _plain(_u, 8),
    "chebyshev_polynomial_v": _plain(_v, 8),
    "chebyshev_polynomial_w": _plain(_w, 8),
    "hermite_polynomial_h": _hermite_h,
    "hermite_polynomial_he": _hermite_he,
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
    "shifted_chebyshev_polynomial_t": _shifted(_t, 6),
    "shifted_chebyshev_polynomial_u": _shifted(_u, 6),
    "shifted_chebyshev_polynomial_v": _shifted(_v, 6),
    "shifted_chebyshev_polynomial_w": _shifted(_w, 4),
}


def _register(name: str, function: Callable[[jax.Array, jax.Array], jax.Array]) -> None:
    def degree(x: jax.Array, n: jax.Array) -> jax.Array:
        # A degree that is not an int64 counts as negative.
        return function(x, jnp.where(jnp.abs(n) < 2.0**63, n, -1).astype(jnp.int64))

    names = [f"aten.special_{name}.{kind}" for kind in ("default", "n_scalar", "x_scalar")]

    @op(*names, differentiable=False, flops=("results", 4))
    def lower(x: Any, n: Any) -> jax.Array:
        return elementwise(degree, x, n, to_float=True)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)
