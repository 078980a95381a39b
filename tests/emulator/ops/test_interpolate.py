"""Interpolation against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check

SIZES: list[tuple[tuple[int, ...] | None, tuple[float, ...] | None]] = [
    ((5, 17), None),
    (None, (2.0, 2.0)),
    (None, (0.7, 1.6)),
]


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize(("size", "factors"), SIZES)
@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest(name: str, size: Any, factors: Any) -> None:
    check(f"aten.{name}.vec", data(2, 3, 8, 10), size, factors)


ALIGNED = [
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
]


@pytest.mark.parametrize(("size", "factors"), SIZES[::2])
@pytest.mark.parametrize("name", ALIGNED)
def test_corners_not_aligned(name: str, size: Any, factors: Any) -> None:
    check(f"aten.{name}.vec", data(2, 3, 8, 10), size, False, factors)


@pytest.mark.parametrize("name", ALIGNED)
def test_corners_aligned(name: str) -> None:
    check(f"aten.{name}.vec", data(2, 3, 8, 10), [5, 17], True, None)


def test_one_and_three_axes() -> None:
    check("aten.upsample_nearest1d.vec", data(2, 3, 8), [5], None)
    check("aten.upsample_nearest3d.vec", data(1, 2, 3, 4, 5), None, [2.0, 1.0, 1.5])
    check("aten.upsample_linear1d.vec", data(2, 3, 8), [13], False, None)
    check("aten.upsample_trilinear3d.vec", data(1, 2, 3, 4, 5), [5, 4, 3], True, None)


def test_plain_overloads() -> None:
    check("aten.upsample_nearest2d.default", data(2, 3, 8, 10), [16, 5])
    check("aten.upsample_nearest2d.default", data(2, 3, 8, 10), [12, 25], 1.6, 2.5)
    check("aten.upsample_bilinear2d.default", data(2, 3, 8, 10), [12, 5], False)
    check("aten.upsample_bilinear2d.default", data(2, 3, 8, 10), [12, 25], False, 1.6, 2.5)


def test_other_dtypes() -> None:
    x = data(1, 2, 7, 9, dtype=torch.float64)
    check("aten.upsample_bilinear2d.vec", x, [5, 11], False, None)
    check("aten.upsample_nearest2d.vec", data(1, 2, 7, 9).bfloat16(), [14, 18], None)
