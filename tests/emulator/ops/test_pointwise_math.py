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


def test_functions() -> None:
    """Inside and outside the domain, at zeros of both signs, infinities and NaN."""
    for name in EVERYWHERE:
        check(f"aten.{name}.default", WIDE)
    check("aten.tan.default", torch.linspace(-1.5, 1.5, 31))  # away from its poles
    for name in ("exp", "log", "reciprocal", "erf", "deg2rad", "sinc"):
        check(f"aten.{name}.default", INTS)
    for name in ("exp", "log", "sqrt", "rsqrt", "sin", "erf"):
        check_narrow(f"aten.{name}.default", X.abs() + 0.5)


def test_rounding() -> None:
    for name in ("ceil", "floor", "trunc", "round", "sign", "sgn", "frac"):
        finite = WIDE[torch.isfinite(WIDE)] if name == "frac" else WIDE
        check(f"aten.{name}.default", finite, grad=name != "sgn")  # torch gives an unreadable zero
    for name in ("ceil", "round", "sign"):
        check(f"aten.{name}.default", INTS)
    for decimals in (-1, 0, 2):
        check("aten.round.decimals", X * 100, decimals=decimals)
    for decimals in (400, -400):  # more than there are
        check("aten.round.decimals", torch.tensor([0.0, 1.5, NAN]), decimals=decimals, grad=False)


def test_ends() -> None:
    for eps in (None, 0.3):
        check("aten.logit.default", torch.tensor([0.0, 0.2, 0.3, 0.5, 0.9, 1.0]), eps)
        check("aten.logit.default", torch.tensor([-0.5, 1.5]), eps)
    check("aten.nan_to_num.default", WIDE)
    check("aten.nan_to_num.default", WIDE, 1.0, 2.0, -3.0)
    check("aten.nan_to_num.default", WIDE.bfloat16())


def test_pairs() -> None:
    x, zero = X.clone(), torch.zeros(2)
    x[0, :2] = torch.tensor([0.0, -0.0])
    for name in ("atan2.default", "logaddexp.default", "logaddexp2.default", "copysign.Tensor"):
        check(f"aten.{name}", x, Y)
    check("aten.xlogy.Tensor", x, Y.abs())
    check("aten.atan2.default", zero, zero)
    check("aten.hypot.default", zero, zero)
    check("aten.hypot.default", X * 1e20, Y * 1e20)
    check("aten.xlogy.Tensor", torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, NAN, 0.0]))
    check("aten.xlogy.Scalar_Self", 0.0, Y)
    check("aten.special_xlog1py.default", torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 3.0]))
    check("aten.heaviside.default", WIDE[:, None], torch.tensor([0.5, NAN]), grad=False)
    check("aten.nextafter.default", X, Y, grad=False)
    check("aten.gcd.default", INTS, INTS.flip(0))
    check("aten.lcm.default", INTS, INTS.flip(0))


def test_powers_of_two() -> None:
    check("aten.frexp.Tensor", X * 100)
    check("aten.ldexp.Tensor", X, torch.arange(8))
    x = torch.tensor([1.5, -2.0, 3.0, 0.5])
    for dtype in (torch.int64, torch.int32, torch.float32):  # whole and other exponents
        check("aten.ldexp.Tensor", x, torch.tensor([-3, 0, 2, 5]).to(dtype))
        check("aten.ldexp.Tensor", x, torch.tensor(-3).to(dtype))


def test_special() -> None:
    for name in (
        *("lgamma", "special_entr", "special_erfcx", "special_ndtr", "special_log_ndtr"),
        *("i0", "special_i0e", "special_i1", "special_i1e", "digamma"),
    ):
        check(f"aten.{name}.default", X * 3)
    for name in ("lgamma", "digamma", "special_erfcx"):
        check(f"aten.{name}.default", X.double() * 3)
    check("aten.special_ndtri.default", X.sigmoid())
    check("aten.mvlgamma.default", X.abs() + 2.1, 3)


@cases("n", [0, 1, 3], every=2)
def test_polygamma(n: int) -> None:
    check(f"aten.{'special_' * (n == 0)}polygamma.default", n, X.double() * 2)


@pytest.mark.slow  # these take seconds to compile
def test_special_by_series() -> None:
    p = (X.abs() + 0.1).double()
    check("aten.igamma.default", p, p.flip(0), grad=False)
    check("aten.igammac.default", p, p.flip(0), grad=False)
    check("aten.special_zeta.default", p + 1.1, p.flip(0), grad=False)
    check("aten.special_zeta.self_scalar", 2.5, p)


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


@cases("n", [20, 21, 30, 36, 171, 1000, 10**9], every=3)
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


def test_gamma_functions_of_more_dimensions_than_end_are_refused() -> None:
    for name in ("aten.mvlgamma.default", "aten.special_multigammaln.default"):
        with pytest.raises(OpLimit, match="the dimensions of the gamma function is 2147483647"):
            load_ops()[name].lower(jnp.ones(3), 2**31 - 1)


@pytest.mark.slow
def test_shares_of_gamma_functions_of_large_orders() -> None:
    order = torch.tensor([210.0, 1e4, 1e6, 1e8, 1e12], dtype=torch.float64)[:, None]
    x = order + torch.tensor([-3.0, -1.0, 0.0, 0.5, 3.0], dtype=torch.float64) * order.sqrt()
    for name in ("igamma", "igammac"):
        check(f"aten.{name}.default", order.expand(x.shape), x, grad=False)
