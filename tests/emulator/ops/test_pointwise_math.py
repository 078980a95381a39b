"""Functions of one and two real numbers, and special functions, against torch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from pef_schema.program import DType
from samba.comparison.sides import Tol
from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
G = torch.Generator().manual_seed(0)
X = torch.randn(6, 8, generator=G)
Y = torch.randn(8, generator=G)
KNOTS = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, 7.0, -7.0, INF, -INF, NAN])
WIDE = torch.cat([torch.linspace(-6, 6, 61), KNOTS])
INTS = torch.arange(-4, 8)
EVERYWHERE = [
    *("exp", "exp2", "expm1", "sin", "cos", "atan", "asinh", "erf", "erfc", "sinh", "cosh"),
    *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "asin", "acos", "acosh"),
    *("atanh", "erfinv", "sinc", "deg2rad", "rad2deg", "angle"),
]
ROUNDING = ["ceil", "floor", "trunc", "round", "sign", "sgn", "frac"]


@cases("name", EVERYWHERE)
def test_functions(name: str) -> None:
    """Inside and outside the domain, at zeros of both signs, infinities and NaN."""
    check(f"aten.{name}.default", WIDE)


def test_tangent_away_from_its_poles() -> None:
    check("aten.tan.default", torch.linspace(-1.5, 1.5, 31))


@cases("name", ["exp", "log", "reciprocal", "erf", "deg2rad", "sinc"])
def test_integers_become_float32(name: str) -> None:
    check(f"aten.{name}.default", INTS)


@cases("name", ROUNDING)
def test_rounding(name: str) -> None:
    finite = WIDE[torch.isfinite(WIDE)] if name == "frac" else WIDE
    check(f"aten.{name}.default", finite, grad=name != "sgn")  # torch gives an unreadable zero


@cases("name", ["ceil", "round", "sign"])
def test_rounding_leaves_integers(name: str) -> None:
    check(f"aten.{name}.default", INTS)


@cases("decimals", [-1, 0, 2])
def test_round_decimals(decimals: int) -> None:
    check("aten.round.decimals", X * 100, decimals=decimals)


@cases("eps", [None, 0.3])
def test_logit(eps: float | None) -> None:
    check("aten.logit.default", torch.tensor([0.0, 0.2, 0.3, 0.5, 0.9, 1.0]), eps)
    check("aten.logit.default", torch.tensor([-0.5, 1.5]), eps)


@cases("name", ["atan2", "logaddexp", "logaddexp2", "copysign.Tensor", "xlogy.Tensor"])
def test_pairs(name: str) -> None:
    full = f"aten.{name}" if "." in name else f"aten.{name}.default"
    other = Y.abs() if name == "xlogy.Tensor" else Y
    x = X.clone()
    x[0, :2] = torch.tensor([0.0, -0.0])
    check(full, x, other)


def test_pairs_at_zero() -> None:
    zero = torch.zeros(2)
    check("aten.atan2.default", zero, zero)
    check("aten.hypot.default", zero, zero)
    check("aten.hypot.default", X * 1e20, Y * 1e20)
    check("aten.xlogy.Tensor", torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, NAN, 0.0]))
    check("aten.xlogy.Scalar_Self", 0.0, Y)
    check("aten.special_xlog1py.default", torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 3.0]))


def test_powers_of_two() -> None:
    check("aten.ldexp.Tensor", X, torch.arange(8))
    check("aten.frexp.Tensor", X * 100)


def test_nan_to_num() -> None:
    check("aten.nan_to_num.default", WIDE)
    check("aten.nan_to_num.default", WIDE, 1.0, 2.0, -3.0)
    check("aten.nan_to_num.default", WIDE.bfloat16())


def test_not_differentiable() -> None:
    check("aten.heaviside.default", WIDE[:, None], torch.tensor([0.5, NAN]), grad=False)
    check("aten.nextafter.default", X, Y, grad=False)
    check("aten.gcd.default", INTS, INTS.flip(0))
    check("aten.lcm.default", INTS, INTS.flip(0))


SPECIAL = [
    *("lgamma", "special_entr", "special_erfcx", "special_ndtr", "special_log_ndtr"),
    *("i0", "special_i0e", "special_i1", "special_i1e", "digamma"),
]


@cases("name", SPECIAL)
def test_special(name: str) -> None:
    check(f"aten.{name}.default", X * 3)


@cases("name", ["lgamma", "digamma", "special_erfcx"])
def test_special_in_double_precision(name: str) -> None:
    check(f"aten.{name}.default", X.double() * 3)


@cases("n", [0, 1, 3], every=2)
def test_polygamma(n: int) -> None:
    check(f"aten.{'special_' * (n == 0)}polygamma.default", n, X.double() * 2)


def test_special_of_two() -> None:
    p = X.abs() + 0.1
    check("aten.special_ndtri.default", X.sigmoid())
    check("aten.mvlgamma.default", p + 2, 3)


@pytest.mark.slow  # these take seconds to compile
def test_special_by_series() -> None:
    p = (X.abs() + 0.1).double()
    check("aten.igamma.default", p, p.flip(0), grad=False)
    check("aten.igammac.default", p, p.flip(0), grad=False)
    check("aten.special_zeta.default", p + 1.1, p.flip(0), grad=False)
    check("aten.special_zeta.self_scalar", 2.5, p)


@cases("name", ["exp", "log", "sqrt", "rsqrt", "sin", "erf"])
def test_half(name: str) -> None:
    check_narrow(f"aten.{name}.default", X.abs() + 0.5)


@cases("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@cases("name", ["gcd", "lcm"])
def test_divisors_of_the_smallest_number(name: str, dtype: torch.dtype) -> None:
    """It is its own absolute value: the loop has to end there, and to wrap around as torch's."""
    low = torch.iinfo(dtype).min
    values = torch.tensor([low, low + 1, -low - 1, 0, 1, -1, 2, 6, -6, 10, 96, low // 2])
    x, y = torch.meshgrid(values.to(dtype), values.to(dtype), indexing="ij")
    if name == "lcm":  # torch's own process dies of dividing the smallest number by -1
        dies = (x == low) & (torch.gcd(x, y) == -1)
        x = torch.where(dies, torch.ones((), dtype=dtype), x)
    check(f"aten.{name}.default", x.contiguous(), y.contiguous())


@cases("n", [20, 21, 30, 36, 171, 1000, 10**9], every=2)
def test_polygamma_of_high_orders(n: int) -> None:
    """``n!`` is infinite from 171 on, in float32 from 35 on; no order takes longer than another."""
    x = torch.tensor([0.5, 1.0, 2.0, 1e-3, 30.0, 0.0, NAN, INF])
    for dtype in (torch.float32, torch.float64):
        tol = Tol(rtol=1e-5, atol=0.0)  # torch takes exp(lgamma(n + 1)) for the factorial
        limits = {DType.FLOAT32: tol, DType.FLOAT64: Tol(rtol=1e-10, atol=0.0)}
        check("aten.polygamma.default", n, x.to(dtype), grad=False, tol=limits)


def test_zeta_far_below_zero() -> None:
    """Each term once is as many as the distance to zero, which torch never walks."""
    q = torch.tensor([-4096.25, -4097.5, -5000.75, -20000.5], dtype=torch.float64)
    for s in (2.0, 3.0, 4.0):
        check("aten.special_zeta.self_scalar", s, q, grad=False)
    zeta = load_ops()["aten.special_zeta.self_scalar"].lower
    with jax.enable_x64(True):
        far = jax.jit(lambda x: zeta(2.0, x))(jnp.asarray([-(2.0**50) + 0.5, -1e12 + 0.25]))
    both_sides = [np.pi**2, np.pi**2 / np.sin(np.pi / 4) ** 2]
    # The sum ends somewhere on one side: what is left out is about 1 / 1e12 of ten.
    np.testing.assert_allclose(np.asarray(far), both_sides, rtol=1e-11)


@cases("name", ["legendre_polynomial_p", "laguerre_polynomial_l"])
def test_polynomials_above_the_highest_degree_are_nan(name: str) -> None:
    x = torch.tensor([0.25, 0.5], dtype=torch.float64)
    check(f"aten.special_{name}.n_scalar", x, 3000, grad=False)
    check(f"aten.special_{name}.n_scalar", x, 1e30, grad=False)  # no int64: torch's is negative
    lower = load_ops()[f"aten.special_{name}.n_scalar"].lower
    with jax.enable_x64(True):
        value = np.asarray(jax.jit(lambda a: lower(a, 2.0**62))(jnp.asarray(x.numpy())))
    assert np.isnan(value).all()


def test_rounding_to_more_decimals_than_there_are() -> None:
    for decimals in (400, -400):
        check("aten.round.decimals", torch.tensor([0.0, 1.5, NAN]), decimals=decimals, grad=False)


def test_gamma_functions_of_more_dimensions_than_end_are_refused() -> None:
    for name in ("aten.mvlgamma.default", "aten.special_multigammaln.default"):
        with pytest.raises(OpLimit, match="the dimensions of the gamma function is 2147483647"):
            load_ops()[name].lower(jnp.ones(3), 2**31 - 1)


@cases("dtype", [torch.int64, torch.int32, torch.float32])
def test_ldexp_by_whole_and_other_exponents(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -2.0, 3.0, 0.5])
    check("aten.ldexp.Tensor", x, torch.tensor([-3, 0, 2, 5]).to(dtype))
    check("aten.ldexp.Tensor", x, torch.tensor(-3).to(dtype))


@pytest.mark.slow
def test_shares_of_gamma_functions_of_large_orders() -> None:
    order = torch.tensor([210.0, 1e4, 1e6, 1e8, 1e12], dtype=torch.float64)[:, None]
    x = order + torch.tensor([-3.0, -1.0, 0.0, 0.5, 3.0], dtype=torch.float64) * order.sqrt()
    for name in ("igamma", "igammac"):
        check(f"aten.{name}.default", order.expand(x.shape), x, grad=False)
