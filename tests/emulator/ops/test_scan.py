"""Cumulative operations against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN = float("nan")
G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
TIES = (X * 2).round()
ZEROS = X.clone()
ZEROS[0, 1, 2] = 0
ZEROS[1, 1:3] = 0
WITH_NAN = X.clone()
WITH_NAN[0, 1] = NAN
SCALAR = torch.tensor(2.0)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_scans(name: str, dim: int) -> None:
    check(f"aten.{name}.default", ZEROS, dim)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax"])
def test_scalars_and_integers(name: str) -> None:
    check(f"aten.{name}.default", SCALAR, 0)
    check(f"aten.{name}.default", TIES.int(), 1)


def test_scan_into_another_dtype() -> None:
    check("aten.cumsum.default", X > 0, 1)
    check("aten.cumsum.default", X, 1, dtype=torch.float64)
    check_narrow("aten.cumsum.default", torch.randn(2, 200), 1)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes(name: str) -> None:
    check(f"aten.{name}.default", TIES, 1)
    check(f"aten.{name}.default", WITH_NAN, 1)


def test_diff() -> None:
    check("aten.diff.default", X, 2, 1)
    check("aten.diff.default", X, 1, -1, X[..., :1], X)
    check("aten.diff.default", X > 0, 1, 0)
