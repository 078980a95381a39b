"""Sums, extremes, truths, variances and norms against torch."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st

from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN = float("nan")
G = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, generator=G)
TIES = X.round()
WITH_NAN = X.clone()
WITH_NAN[0, 1] = NAN
WITH_NAN[1, 2, 3] = NAN
INTS = TIES.long()
SCALAR = torch.tensor(2.0)
DIMS = [([0], True), ([-1], False), ([0, 2], False), ([], True), (None, False)]


@cases(("dim", "keepdim"), DIMS, every=2)
def test_sums(dim: list[int] | None, keepdim: bool) -> None:
    check("aten.sum.dim_IntList", X, dim, keepdim)
    check("aten.mean.dim", X, dim, keepdim)


@cases("name", ["sum", "mean", "max", "min", "prod", "nansum", "trace"])
def test_of_everything(name: str) -> None:
    check(f"aten.{name}.default", X[0] if name == "trace" else X)


@cases("dtype", [torch.bool, torch.int32, torch.uint8])
def test_integers_accumulate_in_int64(dtype: torch.dtype) -> None:
    x = (X > 0).to(dtype)
    check("aten.sum.default", x)
    check("aten.prod.dim_int", x, 1)


def test_dtype_of_the_result() -> None:
    check("aten.sum.default", X, dtype=torch.float64)
    check("aten.mean.default", INTS, dtype=torch.float32)


@cases(("dim", "keepdim"), [([0], True), ([-1], False), ([0, 2], False), ([], False)])
@cases("name", ["amax", "amin"])
def test_extremes(name: str, dim: list[int], keepdim: bool) -> None:
    check(f"aten.{name}.default", TIES, dim, keepdim)


@cases("name", ["amax.default", "max.default", "max.dim", "min.dim", "argmax.default"])
def test_nan_wins(name: str) -> None:
    check(f"aten.{name}", WITH_NAN, *([-1] if name != "max.default" else []))


@cases("name", ["max.dim", "min.dim"])
def test_first_of_equals_is_chosen(name: str) -> None:
    check(f"aten.{name}", TIES, 1, True)
    check(f"aten.{name}", INTS, -1)
    check(f"aten.{name}", SCALAR, 0)


@cases("dim", [None, 0, -1])
@cases("name", ["argmax", "argmin"])
def test_arg_extremes(name: str, dim: int | None) -> None:
    check(f"aten.{name}.default", TIES, dim, True)


def test_aminmax() -> None:
    check("aten.aminmax.default", TIES, dim=1)
    check("aten.aminmax.default", WITH_NAN)


@cases("name", ["any", "all"])
def test_truth(name: str) -> None:
    check(f"aten.{name}.default", TIES)
    check(f"aten.{name}.dim", INTS, 1, True)
    check(f"aten.{name}.dims", WITH_NAN, [0, 2])
    check(f"aten.{name}.default", torch.tensor([0, 3], dtype=torch.uint8))


def test_counts() -> None:
    check("aten.count_nonzero.default", TIES)
    check("aten.count_nonzero.dim_IntList", INTS, [0, 1])


def test_nan_counts_for_nothing() -> None:
    check("aten.nansum.default", WITH_NAN, [2])
    check("aten.nanmean.default", WITH_NAN, [2], True)


@cases("zeros", [0, 1, 2])
def test_products_beside_zeros(zeros: int) -> None:
    x = torch.tensor([[1.5, -2.0, 3.0], [2.0, 0.5, 1.0]])
    x[0, :zeros] = 0
    check("aten.prod.default", x)
    check("aten.prod.dim_int", x, 1, True)


def test_sum_to_size() -> None:
    check("aten.sum_to_size.default", X, [3, 1])
    check("aten.sum_to_size.default", X > 0, [3, 1])


@cases("name", ["sum.dim_IntList", "amax.default", "mean.dim"])
def test_scalars(name: str) -> None:
    check(f"aten.{name}", SCALAR, [0], True)


@cases("name", ["sum", "prod", "mean"])
def test_nothing(name: str) -> None:
    check(f"aten.{name}.default", torch.zeros(0, 3))


@cases("dtype", [torch.bfloat16, torch.float16])
def test_half_types_accumulate_in_float32(dtype: torch.dtype) -> None:
    check_narrow("aten.sum.dim_IntList", torch.randn(4, 300), [1], dtype=dtype)
    check_narrow("aten.mean.dim", torch.randn(4, 300), [1], dtype=dtype)


@settings(max_examples=6)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=3, unique=True),
    st.booleans(),
)
def test_any_shape(shape: list[int], dims: list[int], keepdim: bool) -> None:
    dims = sorted({d % len(shape) for d in dims})
    check("aten.sum.dim_IntList", torch.randn(shape), dims, keepdim)


INF = float("inf")


ZEROS = X.clone()
ZEROS[0] = 0
ZEROS[1, 1, 1] = 0


@cases("name", ["var", "std", "var_mean", "std_mean"])
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


@cases("p", [0, 1, 2, 3, 1.5, INF, -INF], every=2)
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


@cases(("dim", "keepdim"), [([0], True), ([1, 2], False)])
def test_logsumexp(dim: list[int], keepdim: bool) -> None:
    check("aten.logsumexp.default", X * 50, dim, keepdim)


def test_logsumexp_of_infinities_and_integers() -> None:
    x = X.clone()
    x[0] = -INF
    x[1, 0] = INF
    check("aten.logsumexp.default", x, [2])
    check("aten.logsumexp.default", torch.arange(4), [0])
    check("aten.logsumexp.default", torch.tensor(2.0), [0])
