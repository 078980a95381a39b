"""Variances, norms and log-sum-exp against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

INF = float("inf")
G = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, generator=G)
ZEROS = X.clone()
ZEROS[0] = 0
ZEROS[1, 1, 1] = 0


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_variance(name: str) -> None:
    check(f"aten.{name}.correction", X, [0, 2], correction=0, keepdim=True)
    check(f"aten.{name}.correction", X, [-1])
    check(f"aten.{name}.dim", X, [1], False)
    check(f"aten.{name}.default", X)


def test_deviation_of_a_constant_has_no_slope() -> None:
    check("aten.std.correction", torch.ones(3, 4), [1])
    check("aten.std_mean.correction", torch.ones(3, 4), [1], correction=0)


def test_variance_far_from_zero() -> None:
    check("aten.var.correction", X.double() + 1e6, [2])


def test_half_variance() -> None:
    check_narrow("aten.var.correction", X + 3, [2])
    check_narrow("aten.std.correction", X + 3, [2])


@pytest.mark.parametrize("p", [0, 1, 2, 3, 1.5, INF, -INF])
def test_norms(p: float) -> None:
    check("aten.linalg_vector_norm.default", ZEROS, p, [1, 2], True)
    check("aten.linalg_vector_norm.default", ZEROS, p)


def test_norm_below_one() -> None:
    check("aten.linalg_vector_norm.default", X, 0.5, [-1])


def test_older_norms() -> None:
    check("aten.norm.Scalar", X, 3)
    check("aten.norm.ScalarOpt_dim", X, None, [1], True)
    check("aten.frobenius_norm.dim", X[0], [0, 1], grad=False)
    check("aten.norm.ScalarOpt_dtype", X, 2, dtype=torch.float64)
    check("aten.linalg_vector_norm.default", X.bfloat16(), 2, [1], dtype=torch.float32)
    check_narrow("aten.linalg_vector_norm.default", X, 2, [1])


def test_distance_and_renorm() -> None:
    check("aten.dist.default", X, ZEROS)
    check("aten.dist.default", X, X)
    check("aten.renorm.default", X, 2, 1, 1.0)


@pytest.mark.parametrize(("dim", "keepdim"), [([0], True), ([1, 2], False)])
def test_logsumexp(dim: list[int], keepdim: bool) -> None:
    check("aten.logsumexp.default", X * 50, dim, keepdim)


def test_logsumexp_of_infinities_and_integers() -> None:
    x = X.clone()
    x[0] = -INF
    x[1, 0] = INF
    check("aten.logsumexp.default", x, [2])
    check("aten.logsumexp.default", torch.arange(4), [0])
    check("aten.logsumexp.default", torch.tensor(2.0), [0])
