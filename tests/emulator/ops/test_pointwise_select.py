"""Extremes, limits and masks against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
TIES = torch.tensor([[0.0, 1.0, 1.0, 2.0], [1.0, 1.0, -1.0, 2.0]])
LINE = torch.tensor([1.0, 1.0, 0.0, 2.0])
INTS = torch.arange(-3, 5)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes(name: str) -> None:
    """Ties share or pick the gradient as torch does, NaN wins or loses."""
    check(f"aten.{name}.default", TIES, LINE)
    check(f"aten.{name}.default", EDGES[:, None].clone(), EDGES)
    check(f"aten.{name}.default", INTS, INTS.flip(0))


@pytest.mark.parametrize("limits", [(-0.5, 1), (1, None), (None, -1.0), (1, -1)])
def test_clamp(limits: tuple[Any, Any]) -> None:
    check("aten.clamp.default", EDGES, *limits)


def test_clamp_of_integers() -> None:
    check("aten.clamp.default", INTS, -1, 2)
    check("aten.clamp.default", INTS, -1.5, None)
    check("aten.clamp.Tensor", INTS, INTS.flip(0), None)


def test_clamp_by_tensors() -> None:
    low, high = torch.tensor([0.0, 1.0, 0.5, 3.0]), torch.tensor([1.0, 1.0, 0.7, 2.0])
    check("aten.clamp.Tensor", TIES, low, high)
    check("aten.clamp.Tensor", EDGES, torch.zeros(8), None)
    check("aten.clamp.Tensor", EDGES, None, torch.zeros(()))
    check("aten.clamp.Tensor", LINE, torch.tensor([NAN, 0.0, 0.0, 0.0]), None)


@pytest.mark.parametrize("overload", ["default", "Tensor"])
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
    check("aten.masked_fill.Scalar", INTS, INTS > 0, 2)


@pytest.mark.parametrize("name", ["maximum", "fmin"])
def test_half(name: str) -> None:
    check_narrow(f"aten.{name}.default", TIES + 0.1, LINE)
