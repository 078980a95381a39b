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

from emulator.errors import OpLimit
from emulator.op_facts.facts import Fusing
from emulator.ops import _slopes as slopes
from emulator.ops._promote import Operand, constant, elementwise, promoted
from emulator.ops.registry import op

_STIRLING = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Coefficients of digamma's asymptotic series, ``B_2k / 2k``."""


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """A polynomial, lowest power first."""
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _digamma(x: jax.Array) -> jax.Array:
    """Reflection, ten steps of recurrence and the asymptotic series, as torch computes it."""
    whole = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) == x
    part = x - jnp.trunc(x)
    # In float64, as torch: next to a pole the tangent of a rounded angle has no right digit.
    angle = math.pi * part.astype(np.float64)
    below = jnp.where(x < 0, -math.pi / jnp.tan(angle), 0).astype(x.dtype)
    z = jnp.where(x < 0, 1 - x, x)
    total = jnp.zeros_like(x)
    for _ in range(10):
        low = z < 10
        total = jnp.where(low, total - 1 / jnp.where(low, z, 1), total)
        z = jnp.where(low, z + 1, z)
    w = 1 / (z * z)
    value = total + jnp.log(z) - 0.5 / z - _polynomial(_STIRLING, w) * w + below
    value = jnp.where((x < 0) & whole, jnp.nan, value)
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jnp.where(x == jnp.inf, x, value))


_EULER = (
    *(12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9),
    *(7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14),
    *(-4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18),
)
"""Coefficients of the Euler-Maclaurin sum, ``(2k)! / B_2k``."""


_FAR = 4096.0
"""How far below zero the terms of zeta are added one by one; torch's loop may never end there."""


def _zeta_of(s: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz zeta, in float64.

    Terms next to a pole are large, and XLA's float32 powers are off by many units in the last
    place. Far below zero, where ``s`` is whole, the first terms are those of two positive
    arguments: ``zeta(s, q) = zeta(s, q + n) + (-1)**s (zeta(s, 1 - q - n) - zeta(s, 1 - q))``.
    """
    dtype = q.dtype
    s, q = s.astype(np.float64), q.astype(np.float64)
    far = (q < -_FAR) & (jnp.floor(q) != q) & (jnp.floor(s) == s)
    near = jnp.where(far, q - jnp.floor(q) - _FAR, q)

    def first_terms() -> jax.Array:
        ends = jnp.stack([jnp.where(far, 1 - near, 1), jnp.where(far, 1 - q, 1)])
        after = _zeta_sum(jnp.broadcast_to(s, ends.shape), ends)
        return jnp.where(far, jnp.where(s % 2 == 0, 1, -1) * (after[0] - after[1]), 0)

    value = _zeta_sum(s, near)
    value = value + lax.cond(jnp.any(far), first_terms, lambda: jnp.zeros_like(value))
    return value.astype(dtype)


def _zeta_sum(s: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz zeta: terms up to 9, then the Euler-Maclaurin sum (Cephes).

    The number of terms before 9 depends on how far below zero ``q`` is.
    """
    eps = np.finfo(np.float64).eps / 2
    total = q**-s
    at_pole = (q <= 0) & (jnp.floor(q) == q)
    undefined = (q < 0) & (jnp.floor(s) != s)

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        a, _, _, steps, negligible = state
        return ~negligible & ((steps < 9) | (a <= 9))

    def advance(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, b, total, steps, negligible = state
        more = unfinished(state)
        a = jnp.where(more, a + 1, a)
        b = jnp.where(more, a**-s, b)
        total = jnp.where(more, total + b, total)
        small = jnp.abs(b) < eps * jnp.abs(total)
        return a, b, total, steps + 1, negligible | (more & small)

    start = (q, total, total, jnp.zeros((), np.int32), at_pole | undefined)
    state = lax.while_loop(lambda state: jnp.any(unfinished(state)), advance, start)
    a, b, total, _, negligible = state
    rest = b * a / (s - 1) - b / 2
    factor, k = jnp.ones_like(q), 0.0
    for c in _EULER:
        factor = factor * (s + k)
        b = b / a
        rest = rest + factor * b / c
        factor = factor * (s + k + 1)
        b = b / a
        k += 2
    value = jnp.where(negligible, total, total + rest)
    value = jnp.where(undefined, jnp.nan, value)
    value = jnp.where(jnp.isnan(s) | jnp.isnan(q), jnp.nan, value)
    value = jnp.where(at_pole, jnp.inf, value)
    value = jnp.where(s < 1, jnp.nan, value)
    return jnp.where(s == 1, jnp.inf, value)


@jax.custom_jvp
def _zeta(s: jax.Array, q: jax.Array) -> jax.Array:
    return _zeta_of(s, q)


@_zeta.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (s, q), (_, dq) = primals, tangents  # torch has no gradient for the first argument
    return _zeta(s, q), dq * -s * _zeta(s + 1, q)


_MOST_FACTORIAL = 170
"""The largest number whose factorial a float64 holds; torch has infinity above, too."""


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _polygamma(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)
    order = jnp.full_like(x, float(n + 1))
    size = float(math.factorial(n)) if n <= _MOST_FACTORIAL else math.inf
    return jnp.asarray(constant((-1) ** (n + 1) * size, x.dtype)) * _zeta_of(order, x)


@_polygamma.defjvp
def _(n: int, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _polygamma(n, x), dx * _polygamma(n + 1, x)


def _with_slope(
    function: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array], jax.Array]:
    """A function with torch's derivative; jax's own is wrong at 0."""

    def value(x: jax.Array) -> jax.Array:
        return slopes.with_slope(x, function(lax.stop_gradient(x)), slope(lax.stop_gradient(x)))

    return value


def _over_x(x: jax.Array, value: jax.Array) -> jax.Array:
    """``value / x`` for a function that is ``x / 2`` near 0."""
    zero = x == 0
    return jnp.where(zero, 0.5, value / jnp.where(zero, 1, x))


def _i0e_slope(x: jax.Array) -> jax.Array:
    return special.i1e(x) - jnp.sign(x) * special.i0e(x)


def _i1_slope(x: jax.Array) -> jax.Array:
    return _near_half(x, special.i0(x) - _over_x(x, special.i1(x)))


def _i1e_slope(x: jax.Array) -> jax.Array:
    slope = special.i0e(x) - jnp.sign(x) * special.i1e(x) - _over_x(x, special.i1e(x))
    return _near_half(x, slope)


def _near_half(x: jax.Array, slope: jax.Array) -> jax.Array:
    """One half next to zero, and at NaN as torch has it."""
    return jnp.where(jnp.abs(x) > jnp.finfo(x.dtype).eps, slope, 0.5)


def _positive_zero(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """An odd function that torch computes by its argument's size: it is 0.0 at -0.0."""
    return lambda x: jnp.where(x == 0, 0, function(x))


def _entr(x: jax.Array) -> jax.Array:
    """``-x log(x)``, 0 at zero and minus infinity below."""
    return jnp.where(x == 0, 0, jnp.where(x < 0, -jnp.inf, -x * jnp.log(x)))


def _ndtri_slope(x: jax.Array) -> jax.Array:
    # In float64, for an error in ndtri grows by its size.
    root = special.ndtri(x.astype(np.float64))
    return (math.sqrt(2 * math.pi) * jnp.exp(root * root / 2)).astype(x.dtype)


def _log_ndtr_slope(x: jax.Array) -> jax.Array:
    return math.sqrt(2 / math.pi) / special.erfcx(-x * math.sqrt(0.5))


def _multigammaln_slope(x: jax.Array, p: int) -> jax.Array:
    x = jnp.where(x == 0, 0, x)  # torch adds 0.0 to -0.0
    return jnp.sum(_digamma(x[..., None] - jnp.arange(p - 1, -1, -1, dtype=x.dtype) / 2), -1)


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


_Functions = tuple[tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]], ...]

_GAMMA: _Functions = (
    (("lgamma", "special_gammaln"), _with_slope(special.gammaln, _digamma)),
    (("digamma", "special_digamma", "special_psi"), partial(_polygamma, 0)),
)
_FUNCTIONS: _Functions = (
    (("special_entr",), _with_slope(_entr, lambda x: -(1 + jnp.log(x)))),
    (("special_erfcx",), special.erfcx),
    (("special_ndtr",), special.ndtr),
    (("special_ndtri",), _with_slope(special.ndtri, _ndtri_slope)),
    (("special_log_ndtr",), _with_slope(special.log_ndtr, _log_ndtr_slope)),
    (("i0", "special_i0"), _with_slope(special.i0, special.i1)),
    (("special_i0e",), _with_slope(special.i0e, _i0e_slope)),
    (("special_i1",), _with_slope(_positive_zero(special.i1), _i1_slope)),
    (("special_i1e",), _with_slope(_positive_zero(special.i1e), _i1e_slope)),
)
for _table, _fusing in ((_GAMMA, Fusing.DEAR), (_FUNCTIONS, None)):
    for _names, _fn in _table:
        _full = [f"aten.{n}.default" for n in _names]
        op(*_full, reads=(0,), cheap=True, fusing=_fusing)(promoted(_fn, to_float=True))


@op("aten.polygamma.default", "aten.special_polygamma.default", reads=(1,), cheap=True)
def polygamma(n: int, x: jax.Array) -> jax.Array:
    """The ``n``-th derivative of digamma."""
    return elementwise(partial(_polygamma, n), x, to_float=True)


_MOST_DIMENSIONS = 2**16
"""Each is a logarithm of a gamma function for each element."""


@op("aten.mvlgamma.default", "aten.special_multigammaln.default", reads=(0,), cheap=True)
def mvlgamma(x: jax.Array, p: int) -> jax.Array:
    """The logarithm of the ``p``-dimensional gamma function."""
    if p > _MOST_DIMENSIONS:
        raise OpLimit(
            argument="the dimensions of the gamma function", found=p, most=_MOST_DIMENSIONS
        )
    function = _with_slope(partial(special.multigammaln, d=p), partial(_multigammaln_slope, p=p))
    return elementwise(function, x, to_float=True)


def _gamma_share(lower: bool, a: jax.Array, x: jax.Array) -> jax.Array:
    """The share of a gamma function below ``x``, or above; its bounds in torch's order."""
    none, whole = (0, 1) if lower else (1, 0)
    far = is_expanded(a, x)
    near = jnp.where(far, 1, a), jnp.where(far, 1, x)  # the loops of the series would be long
    value = special.gammainc(*near) if lower else special.gammaincc(*near)
    value = jnp.where(far, expanded(a, x, lower=lower), value)
    value = jnp.where(jnp.isinf(x), whole, value)
    value = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, none), value)
    # Of orders that are next to nothing, series run into denormals.
    value = jnp.where((a < 4 * jnp.finfo(a.dtype).tiny) & (x == x), whole, value)
    value = jnp.where((a == 0) & (x != x), jnp.nan, value)
    value = jnp.where(x == 0, jnp.where(a == 0, jnp.nan, none), value)
    return jnp.where((x < 0) | (a < 0), jnp.nan, value)


for _names, _lower in ((("igamma", "gammainc"), True), (("igammac", "gammaincc"), False)):
    op(
        *(f"aten.{_names[0]}.default", f"aten.special_{_names[1]}.default"),
        reads=(0, 1),
        cheap=True,
        no_derivative=(0,),
    )(promoted(partial(_gamma_share, _lower)))


@op(
    *("aten.special_zeta.default", "aten.special_zeta.other_scalar"),
    reads=(0, 1),
    cheap=True,
    no_derivative=(0,),
)
@op("aten.special_zeta.self_scalar", reads=(0, 1), cheap=True)
def zeta(x: Operand, other: Operand) -> jax.Array:
    """Hurwitz zeta function."""
    return elementwise(_zeta, x, other, to_float=True)


# -- shares of a gamma function of a large order next to its argument ----------------

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
