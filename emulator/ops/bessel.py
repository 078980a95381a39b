"""Lowerings: Bessel and Airy functions, by the approximations of the Cephes library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from emulator.ops import _cephes as table
from emulator.ops._promote import elementwise
from emulator.ops.registry import op


def _horner(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """A polynomial, highest power first."""
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _chebyshev(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """A Chebyshev series by Clenshaw's recurrence, highest order first."""
    a, p, q = jnp.full_like(x, coefficients[0]), jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[1:]:
        p, q = q, a
        a = x * q - p + c
    return 0.5 * (a - p)


def _waves(
    x: jax.Array, tables: tuple[Sequence[float], ...], shift: float
) -> tuple[jax.Array, jax.Array]:
    """Hankel's expansion for large arguments: the functions of the first and second kind."""
    pp, pq, qp, qq = tables
    w = 5 / x
    z = w * w
    p, q = _horner(pp, z) / _horner(pq, z), w * (_horner(qp, z) / _horner(qq, z))
    sine, cosine = jnp.sin(x - shift), jnp.cos(x - shift)
    root = math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return (p * cosine - q * sine) * root, (p * sine + q * cosine) * root


_ZERO = (table.J0_PP, table.J0_PQ, table.J0_QP, table.J0_QQ)
_ONE = (table.J1_PP, table.J1_PQ, table.J1_QP, table.J1_QQ)


def _j0(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    z = x * x
    roots = (z - 5.78318596294678452118) * (z - 30.4712623436620863991)
    near = roots * _horner(table.J0_RP, z) / _horner(table.J0_RQ, z)
    near = jnp.where(x < 1e-5, 1 - z / 4, near)
    return jnp.where(x <= 5, near, _waves(x, _ZERO, math.pi / 4)[0])


def _j1(x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    z = size * size
    near = _horner(table.J1_RP, z) / _horner(table.J1_RQ, z) * size
    near = near * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    value = jnp.where(size <= 5, near, _waves(size, _ONE, 3 * math.pi / 4)[0])
    return jnp.where(x < 0, -value, jnp.where(x == 0, x, value))


def _outside(x: jax.Array, value: jax.Array, at_zero: float) -> jax.Array:
    """A function of positive numbers: a pole at 0 and NaN below."""
    return jnp.where(x == 0, at_zero, jnp.where(x < 0, jnp.nan, value))


def _y0(x: jax.Array) -> jax.Array:
    z = x * x
    near = _horner(table.Y0_YP, z) / _horner(table.Y0_YQ, z)
    near = near + (2 / math.pi) * jnp.log(x) * _j0(x)
    far = _waves(x, _ZERO, math.pi / 4)[1]
    return _outside(x, jnp.where(x <= 5, near, far), -jnp.inf)


def _y1(x: jax.Array) -> jax.Array:
    z = x * x
    near = x * (_horner(table.Y1_YP, z) / _horner(table.Y1_YQ, z))
    near = near + (2 / math.pi) * (_j1(x) * jnp.log(x) - 1 / x)
    far = _waves(x, _ONE, 3 * math.pi / 4)[1]
    return _outside(x, jnp.where(x <= 5, near, far), -jnp.inf)


def _k0(x: jax.Array, *, scaled: bool = False) -> jax.Array:
    logarithm = jnp.log(x) - math.log(2)  # half of the least number is none
    near = _chebyshev(table.K0_A, x * x - 2) - logarithm * special.i0(x)
    far = _chebyshev(table.K0_B, 8 / x - 2) / jnp.sqrt(x)
    near, far = (near * jnp.exp(x), far) if scaled else (near, jnp.exp(-x) * far)
    return _outside(x, jnp.where(x <= 2, near, far), jnp.inf)


def _k1(x: jax.Array, *, scaled: bool = False) -> jax.Array:
    near = (jnp.log(x) - math.log(2)) * special.i1(x) + _chebyshev(table.K1_A, x * x - 2) / x
    far = _chebyshev(table.K1_B, 8 / x - 2) / jnp.sqrt(x)
    near, far = (near * jnp.exp(x), far) if scaled else (near, jnp.exp(-x) * far)
    return _outside(x, jnp.where(x <= 2, near, far), jnp.inf)


def _spherical_j0(x: jax.Array) -> jax.Array:
    z = x * x
    powers = [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))]
    value = jnp.where(jnp.abs(x) < 0.5, _horner(powers, z), jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), 0, value)


def _airy(x: jax.Array) -> jax.Array:
    root = jnp.sqrt(jnp.abs(x))
    zeta = 2 * jnp.abs(x) * root / 3
    scale = 1 / math.sqrt(math.pi)
    z = 1 / zeta
    w = z * z
    f = 1 + w * _horner(table.AIRY_AFN, w) / _horner(table.AIRY_AFD, w)
    g = z * _horner(table.AIRY_AGN, w) / _horner(table.AIRY_AGD, w)
    angle = zeta + math.pi / 4
    below = scale / jnp.sqrt(root) * (jnp.sin(angle) * f - jnp.cos(angle) * g)
    above = _horner(table.AIRY_AN, z) / _horner(table.AIRY_AD, z)
    above = scale * above / (2 * jnp.sqrt(root) * jnp.exp(zeta))
    value = jnp.where(x < -2.09, below, jnp.where(x >= 2.09, above, _airy_series(x)))
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.where(x > 103.892, 0, value))


def _airy_series(x: jax.Array) -> jax.Array:
    """The power series between -2.09 and 2.09; 14 terms reach float64's precision there."""
    z = x * x * x
    f, g, m, n = jnp.ones_like(x), x, jnp.ones_like(x), x
    for k in range(1, 43, 3):
        m = m * z / ((k + 1) * (k + 2))
        n = n * z / ((k + 2) * (k + 3))
        f, g = f + m, g + n
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


def _scaled_k0(x: jax.Array) -> jax.Array:
    return _k0(x, scaled=True)


def _scaled_k1(x: jax.Array) -> jax.Array:
    return _k1(x, scaled=True)


def _modified_i1(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 0, special.i1(x))  # 0.0 at -0.0, as torch has it


def _wide(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """In float64: a wave far from zero hangs on the last digits of a large angle.

    Where that angle is none in the argument's own type, the function is NaN as in torch.
    """

    def run(x: jax.Array) -> jax.Array:
        angle = x * jnp.sqrt(jnp.abs(x))
        lost = jnp.isinf(angle) & (x < 0)
        return jnp.where(lost, jnp.nan, function(x.astype(np.float64)).astype(x.dtype))

    return run


_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "special_airy_ai": _wide(_airy),
    "special_bessel_j0": _j0,
    "special_bessel_j1": _j1,
    "special_bessel_y0": _y0,
    "special_bessel_y1": _y1,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": _modified_i1,
    "special_modified_bessel_k0": _k0,
    "special_modified_bessel_k1": _k1,
    "special_scaled_modified_bessel_k0": _scaled_k0,
    "special_scaled_modified_bessel_k1": _scaled_k1,
    "special_spherical_bessel_j0": _spherical_j0,
}


def _register(name: str, function: Callable[[jax.Array], jax.Array]) -> None:
    @op(f"aten.{name}.default", cheap=True, differentiable=False)
    def lower(x: jax.Array) -> jax.Array:
        return elementwise(function, lax.stop_gradient(x), to_float=True)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)
