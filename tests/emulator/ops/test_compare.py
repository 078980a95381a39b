"""Comparisons, predicates, bits, extremes, limits and masks against torch."""

from __future__ import annotations

import torch

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
INTS = torch.arange(-4, 8).reshape(3, 4)
ROW = torch.tensor([3, 2, 0, 8])
TIES = torch.tensor([[0.0, 1.0, 1.0, 2.0], [1.0, 1.0, -1.0, 2.0]])
LINE = torch.tensor([1.0, 1.0, 0.0, 2.0])
LINE_OF_INTS = torch.arange(-3, 5)


def test_comparisons() -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        check(f"aten.{name}.Tensor", EDGES[:, None], EDGES)
        check(f"aten.{name}.Tensor", INTS, ROW.float())
        check(f"aten.{name}.Scalar", INTS, 1.5)
    # A number is rounded to the tensor's dtype first.
    check("aten.eq.Scalar", torch.tensor([0.1], dtype=torch.bfloat16), 0.1)


def test_predicates() -> None:
    for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"):
        check(f"aten.{name}.default", EDGES)
        check(f"aten.{name}.default", INTS)
    for invert in (False, True):
        check("aten.isin.Tensor_Tensor", INTS, ROW, invert=invert)
        check("aten.isin.Tensor_Scalar", INTS, 3, invert=invert)
    for equal_nan in (False, True):
        check("aten.isclose.default", EDGES[:, None], EDGES + 1e-6, equal_nan=equal_nan)
    check("aten.isclose.default", INTS, INTS + 1, 0.5)


def test_logic_and_bits() -> None:
    for name in ("and", "or", "xor"):
        check(f"aten.logical_{name}.default", EDGES, torch.arange(8) % 2)
        check(f"aten.bitwise_{name}.Tensor", INTS, ROW)
        check(f"aten.bitwise_{name}.Scalar_Tensor", 3, INTS)
        check(f"aten.__{name}__.Scalar", INTS > 0, True)
    check("aten.logical_not.default", EDGES)
    check("aten.bitwise_not.default", INTS)
    check("aten.bitwise_not.default", INTS > 0)


def test_shifts() -> None:
    for dtype in (torch.int64, torch.int32, torch.uint8):
        x = torch.tensor([1, 3, 100, 7], dtype=dtype)
        bits = torch.tensor([0, 1, 3, torch.iinfo(dtype).bits], dtype=dtype)
        check("aten.bitwise_left_shift.Tensor", x, bits)
        check("aten.bitwise_right_shift.Tensor", x, bits)
        check("aten.bitwise_right_shift.Tensor_Scalar", x, 2)
    # To the right the sign is kept.
    check("aten.bitwise_right_shift.Tensor", torch.tensor([-5, -5]), torch.tensor([1, 64]))
    check("aten.__lshift__.Scalar", INTS, 2)


def test_extremes() -> None:
    """Ties share or pick the gradient as torch does, NaN wins or loses."""
    for name in ("maximum", "minimum", "fmax", "fmin"):
        check(f"aten.{name}.default", TIES, LINE)
        check(f"aten.{name}.default", EDGES[:, None].clone(), EDGES)
        check(f"aten.{name}.default", LINE_OF_INTS, LINE_OF_INTS.flip(0))
    for name in ("maximum", "fmin"):
        check_narrow(f"aten.{name}.default", TIES + 0.1, LINE)


def test_limits() -> None:
    for low, high in ((-0.5, 1), (1, None), (None, -1.0), (1, -1)):
        check("aten.clamp.default", EDGES, low, high)
    check("aten.clamp.default", LINE_OF_INTS, -1, 2)
    check("aten.clamp.default", LINE_OF_INTS, -1.5, None)
    check("aten.clamp.Tensor", LINE_OF_INTS, LINE_OF_INTS.flip(0), None)
    lows, highs = torch.tensor([0.0, 1.0, 0.5, 3.0]), torch.tensor([1.0, 1.0, 0.7, 2.0])
    check("aten.clamp.Tensor", TIES, lows, highs)
    check("aten.clamp.Tensor", EDGES, torch.zeros(8), None)
    check("aten.clamp.Tensor", EDGES, None, torch.zeros(()))
    check("aten.clamp.Tensor", LINE, torch.tensor([NAN, 0.0, 0.0, 0.0]), None)
    for side in ("min", "max"):
        check(f"aten.clamp_{side}.default", TIES, 1.0)
        check(f"aten.clamp_{side}.Tensor", TIES, torch.tensor(1.0))


def test_masks() -> None:
    mask = TIES > 0
    check("aten.where.self", mask, TIES, LINE)
    check("aten.where.self", mask, TIES, torch.tensor(2, dtype=torch.int64))
    check("aten.where.ScalarOther", mask, TIES, 3)
    check("aten.where.ScalarSelf", mask, 3, TIES)
    check("aten.where.Scalar", mask, 1.5, 0)
    check("aten.where.self", mask, TIES.bfloat16(), TIES)
    check("aten.masked_fill.Scalar", TIES, LINE > 0, -INF)
    check("aten.masked_fill.Tensor", TIES, LINE > 0, torch.tensor(2.0))
    check("aten.masked_fill.Scalar", LINE, mask, 2)
    check("aten.masked_fill.Scalar", LINE_OF_INTS, LINE_OF_INTS > 0, 2)
