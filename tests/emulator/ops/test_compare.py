"""Comparisons, predicates, bits, extremes, limits and masks against torch."""

from __future__ import annotations

from typing import Any

import torch

from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
INTS = torch.arange(-4, 8).reshape(3, 4)
ROW = torch.tensor([3, 2, 0, 8])


@cases("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    check(f"aten.{name}.Tensor", EDGES[:, None], EDGES)
    check(f"aten.{name}.Tensor", INTS, ROW.float())
    check(f"aten.{name}.Scalar", INTS, 1.5)


def test_a_number_is_rounded_to_the_tensors_dtype_first() -> None:
    check("aten.eq.Scalar", torch.tensor([0.1], dtype=torch.bfloat16), 0.1)


@cases("name", ["and", "or", "xor"])
def test_logic_and_bits(name: str) -> None:
    check(f"aten.logical_{name}.default", EDGES, torch.arange(8) % 2)
    check(f"aten.bitwise_{name}.Tensor", INTS, ROW)
    check(f"aten.bitwise_{name}.Scalar_Tensor", 3, INTS)
    check(f"aten.__{name}__.Scalar", INTS > 0, True)


def test_not() -> None:
    check("aten.logical_not.default", EDGES)
    check("aten.bitwise_not.default", INTS)
    check("aten.bitwise_not.default", INTS > 0)


@cases("dtype", [torch.int64, torch.int32, torch.uint8])
def test_shifts(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 3, 100, 7], dtype=dtype)
    bits = torch.tensor([0, 1, 3, torch.iinfo(dtype).bits], dtype=dtype)
    check("aten.bitwise_left_shift.Tensor", x, bits)
    check("aten.bitwise_right_shift.Tensor", x, bits)
    check("aten.bitwise_right_shift.Tensor_Scalar", x, 2)


def test_right_shift_keeps_the_sign() -> None:
    check("aten.bitwise_right_shift.Tensor", torch.tensor([-5, -5]), torch.tensor([1, 64]))
    check("aten.__lshift__.Scalar", INTS, 2)


@cases("name", ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"])
def test_predicates(name: str) -> None:
    check(f"aten.{name}.default", EDGES)
    check(f"aten.{name}.default", INTS)


@cases("invert", [False, True])
def test_isin(invert: bool) -> None:
    check("aten.isin.Tensor_Tensor", INTS, ROW, invert=invert)
    check("aten.isin.Tensor_Scalar", INTS, 3, invert=invert)


@cases("equal_nan", [False, True])
def test_isclose(equal_nan: bool) -> None:
    check("aten.isclose.default", EDGES[:, None], EDGES + 1e-6, equal_nan=equal_nan)
    check("aten.isclose.default", INTS, INTS + 1, 0.5)


EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
TIES = torch.tensor([[0.0, 1.0, 1.0, 2.0], [1.0, 1.0, -1.0, 2.0]])
LINE = torch.tensor([1.0, 1.0, 0.0, 2.0])
LINE_OF_INTS = torch.arange(-3, 5)


@cases("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes(name: str) -> None:
    """Ties share or pick the gradient as torch does, NaN wins or loses."""
    check(f"aten.{name}.default", TIES, LINE)
    check(f"aten.{name}.default", EDGES[:, None].clone(), EDGES)
    check(f"aten.{name}.default", LINE_OF_INTS, LINE_OF_INTS.flip(0))


@cases("limits", [(-0.5, 1), (1, None), (None, -1.0), (1, -1)])
def test_clamp(limits: tuple[Any, Any]) -> None:
    check("aten.clamp.default", EDGES, *limits)


def test_clamp_of_integers() -> None:
    check("aten.clamp.default", LINE_OF_INTS, -1, 2)
    check("aten.clamp.default", LINE_OF_INTS, -1.5, None)
    check("aten.clamp.Tensor", LINE_OF_INTS, LINE_OF_INTS.flip(0), None)


def test_clamp_by_tensors() -> None:
    low, high = torch.tensor([0.0, 1.0, 0.5, 3.0]), torch.tensor([1.0, 1.0, 0.7, 2.0])
    check("aten.clamp.Tensor", TIES, low, high)
    check("aten.clamp.Tensor", EDGES, torch.zeros(8), None)
    check("aten.clamp.Tensor", EDGES, None, torch.zeros(()))
    check("aten.clamp.Tensor", LINE, torch.tensor([NAN, 0.0, 0.0, 0.0]), None)


@cases("overload", ["default", "Tensor"])
def test_one_sided_clamps(overload: str) -> None:
    bound = torch.tensor(1.0) if overload == "Tensor" else 1.0
    check(f"aten.clamp_min.{overload}", TIES, bound)
    check(f"aten.clamp_max.{overload}", TIES, bound)


def test_where() -> None:
    mask = TIES > 0
    check("aten.where.self", mask, TIES, LINE)
    check("aten.where.self", mask, TIES, torch.tensor(2, dtype=torch.int64))
    check("aten.where.ScalarOther", mask, TIES, 3)
    check("aten.where.ScalarSelf", mask, 3, TIES)
    check("aten.where.Scalar", mask, 1.5, 0)
    check("aten.where.self", mask, TIES.bfloat16(), TIES)


def test_masked_fill() -> None:
    mask = LINE > 0
    check("aten.masked_fill.Scalar", TIES, mask, -INF)
    check("aten.masked_fill.Tensor", TIES, mask, torch.tensor(2.0))
    check("aten.masked_fill.Scalar", LINE, TIES > 0, 2)
    check("aten.masked_fill.Scalar", LINE_OF_INTS, LINE_OF_INTS > 0, 2)


@cases("name", ["maximum", "fmin"])
def test_half(name: str) -> None:
    check_narrow(f"aten.{name}.default", TIES + 0.1, LINE)
