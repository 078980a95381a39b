"""Comparisons, predicates and bits against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
INTS = torch.arange(-4, 8).reshape(3, 4)
ROW = torch.tensor([3, 2, 0, 8])


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    check(f"aten.{name}.Tensor", EDGES[:, None], EDGES)
    check(f"aten.{name}.Tensor", INTS, ROW.float())
    check(f"aten.{name}.Scalar", INTS, 1.5)


def test_a_number_is_rounded_to_the_tensors_dtype_first() -> None:
    check("aten.eq.Scalar", torch.tensor([0.1], dtype=torch.bfloat16), 0.1)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic_and_bits(name: str) -> None:
    check(f"aten.logical_{name}.default", EDGES, torch.arange(8) % 2)
    check(f"aten.bitwise_{name}.Tensor", INTS, ROW)
    check(f"aten.bitwise_{name}.Scalar_Tensor", 3, INTS)
    check(f"aten.__{name}__.Scalar", INTS > 0, True)


def test_not() -> None:
    check("aten.logical_not.default", EDGES)
    check("aten.bitwise_not.default", INTS)
    check("aten.bitwise_not.default", INTS > 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_shifts(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 3, 100, 7], dtype=dtype)
    bits = torch.tensor([0, 1, 3, torch.iinfo(dtype).bits], dtype=dtype)
    check("aten.bitwise_left_shift.Tensor", x, bits)
    check("aten.bitwise_right_shift.Tensor", x, bits)
    check("aten.bitwise_right_shift.Tensor_Scalar", x, 2)


def test_right_shift_keeps_the_sign() -> None:
    check("aten.bitwise_right_shift.Tensor", torch.tensor([-5, -5]), torch.tensor([1, 64]))
    check("aten.__lshift__.Scalar", INTS, 2)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"])
def test_predicates(name: str) -> None:
    check(f"aten.{name}.default", EDGES)
    check(f"aten.{name}.default", INTS)


@pytest.mark.parametrize("invert", [False, True])
def test_isin(invert: bool) -> None:
    check("aten.isin.Tensor_Tensor", INTS, ROW, invert=invert)
    check("aten.isin.Tensor_Scalar", INTS, 3, invert=invert)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose(equal_nan: bool) -> None:
    check("aten.isclose.default", EDGES[:, None], EDGES + 1e-6, equal_nan=equal_nan)
    check("aten.isclose.default", INTS, INTS + 1, 0.5)
