"""Sums, extremes and truths against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.emulator.ops.checks import check
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


@pytest.mark.parametrize(("dim", "keepdim"), DIMS)
def test_sums(dim: list[int] | None, keepdim: bool) -> None:
    check("aten.sum.dim_IntList", X, dim, keepdim)
    check("aten.mean.dim", X, dim, keepdim)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "nansum", "trace"])
def test_of_everything(name: str) -> None:
    check(f"aten.{name}.default", X[0] if name == "trace" else X)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8])
def test_integers_accumulate_in_int64(dtype: torch.dtype) -> None:
    x = (X > 0).to(dtype)
    check("aten.sum.default", x)
    check("aten.prod.dim_int", x, 1)


def test_dtype_of_the_result() -> None:
    check("aten.sum.default", X, dtype=torch.float64)
    check("aten.mean.default", INTS, dtype=torch.float32)


@pytest.mark.parametrize(
    ("dim", "keepdim"), [([0], True), ([-1], False), ([0, 2], False), ([], False)]
)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes(name: str, dim: list[int], keepdim: bool) -> None:
    check(f"aten.{name}.default", TIES, dim, keepdim)


@pytest.mark.parametrize(
    "name", ["amax.default", "max.default", "max.dim", "min.dim", "argmax.default"]
)
def test_nan_wins(name: str) -> None:
    check(f"aten.{name}", WITH_NAN, *([-1] if name != "max.default" else []))


@pytest.mark.parametrize("name", ["max.dim", "min.dim"])
def test_first_of_equals_is_chosen(name: str) -> None:
    check(f"aten.{name}", TIES, 1, True)
    check(f"aten.{name}", INTS, -1)
    check(f"aten.{name}", SCALAR, 0)


@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_extremes(name: str, dim: int | None) -> None:
    check(f"aten.{name}.default", TIES, dim, True)


def test_aminmax() -> None:
    check("aten.aminmax.default", TIES, dim=1)
    check("aten.aminmax.default", WITH_NAN)


@pytest.mark.parametrize("name", ["any", "all"])
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


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_beside_zeros(zeros: int) -> None:
    x = torch.tensor([[1.5, -2.0, 3.0], [2.0, 0.5, 1.0]])
    x[0, :zeros] = 0
    check("aten.prod.default", x)
    check("aten.prod.dim_int", x, 1, True)


def test_sum_to_size() -> None:
    check("aten.sum_to_size.default", X, [3, 1])
    check("aten.sum_to_size.default", X > 0, [3, 1])


@pytest.mark.parametrize("name", ["sum.dim_IntList", "amax.default", "mean.dim"])
def test_scalars(name: str) -> None:
    check(f"aten.{name}", SCALAR, [0], True)


@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
def test_nothing(name: str) -> None:
    check(f"aten.{name}.default", torch.zeros(0, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
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
