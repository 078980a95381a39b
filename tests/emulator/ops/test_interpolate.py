"""Interpolation and sampling at a grid against torch."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check

SIZES: list[tuple[tuple[int, ...] | None, tuple[float, ...] | None]] = [
    ((5, 17), None),
    (None, (2.0, 2.0)),
    (None, (0.7, 1.6)),
]


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@cases(("size", "factors"), SIZES, every=2)
@cases("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest(name: str, size: Any, factors: Any) -> None:
    check(f"aten.{name}.vec", data(2, 3, 8, 10), size, factors)


ALIGNED = [
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
]


@cases(("size", "factors"), SIZES[::2])
@cases("name", ALIGNED)
def test_corners_not_aligned(name: str, size: Any, factors: Any) -> None:
    check(f"aten.{name}.vec", data(2, 3, 8, 10), size, False, factors)


@cases("name", ALIGNED)
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


def test_a_long_axis_is_cut_without_a_loop_over_it() -> None:
    x = torch.randn(1, 1, 3000, generator=torch.Generator().manual_seed(0))
    check("aten.upsample_linear1d.default", x, [7], False)
    y = torch.randn(1, 1, 600, 2, generator=torch.Generator().manual_seed(0))
    check("aten._upsample_bilinear2d_aa.default", y, [2, 2], False)


def test_an_axis_of_millions_takes_no_python_step_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    lower = load_ops()["aten.upsample_linear1d.default"].lower
    x = jnp.zeros((1, 1, 2))
    lower(x, (3,), False)
    sys.setprofile(count)
    try:
        lower(x, (10**6,), False)
    finally:
        sys.setprofile(None)
    assert calls < 100_000


@cases("scales", [(0.5,), (-1.0, 2.0), (None, float("inf"))], every=2)
def test_scales_that_are_left_out_or_do_not_count(scales: tuple[float | None, ...]) -> None:
    x = torch.randn(1, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    check("aten.upsample_bilinear2d.default", x, [3, 5], False, *scales)
    check("aten.upsample_nearest2d.default", x, [3, 5], *scales)


def test_longer_axes_than_float32_counts_are_refused() -> None:
    lower = load_ops()["aten.upsample_nearest1d.default"].lower
    with pytest.raises(OpLimit, match=r"the output's size is 1000000000; .* with 16777216 at most"):
        lower(jnp.zeros((1, 1, 2)), (10**9,))
    assert lower(jnp.zeros((0, 1, 2)), (10**9,)).shape == (0, 1, 10**9)


@cases(
    ("name", "size", "out", "more"),
    [
        ("upsample_nearest1d.default", [3], [3], [1.3]),
        ("upsample_nearest1d.default", [3], [6], [2.3]),
        ("upsample_nearest2d.vec", [3, 90], None, [[1.3, 2.003]]),
        ("upsample_nearest2d.vec", [3, 2], None, [[1.3, 2.4]]),
        ("_upsample_nearest_exact2d.vec", [3, 2], None, [[1.3, 2.4]]),
        ("upsample_linear1d.vec", [5], None, [False, [1.1]]),
        ("upsample_bilinear2d.vec", [3, 5], None, [False, [1.3, 1.3]]),
        ("upsample_bicubic2d.vec", [3, 5], None, [False, [1.3, 1.3]]),
        ("_upsample_bilinear2d_aa.default", [4, 7], [2, 7], [False, 0.7, 1.05]),
        ("_upsample_bicubic2d_aa.default", [4, 7], [2, 7], [False, 0.7, 1.05]),
    ],
)
def test_an_axis_that_keeps_its_size_or_doubles(
    name: str, size: list[int], out: list[int] | None, more: list[Any]
) -> None:
    check(f"aten.{name}", data(1, 2, *size), out, *more)


def wide_data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


slow = pytest.mark.slow  # each value of each option stands in a quick case too


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    [
        (0, 0, True),
        (0, 1, False),
        (2, 2, True),
        pytest.param(0, 2, False, marks=slow),
        pytest.param(0, 2, True, marks=slow),
        pytest.param(2, 0, True, marks=slow),
        pytest.param(2, 1, False, marks=slow),
        pytest.param(2, 2, False, marks=slow),
    ],
)
def test_planes(mode: int, padding: int, align: bool) -> None:
    """The grid reaches far outside the image."""
    grid = wide_data(2, 4, 3, 2, seed=1) * 2
    check("aten.grid_sampler_2d.default", wide_data(2, 3, 5, 6), grid, mode, padding, align)


def test_nearest_at_a_grid() -> None:
    grid = wide_data(2, 4, 3, 2, seed=1) * 2
    check("aten.grid_sampler_2d.default", wide_data(2, 3, 5, 6), grid, 1, 2, False)


@cases("mode", [0, 1])
def test_volumes(mode: int) -> None:
    grid = wide_data(1, 2, 3, 2, 3, seed=1)
    check("aten.grid_sampler.default", wide_data(1, 2, 4, 3, 5), grid, mode, 0, False)


@cases("mode", [0, 1, 2], every=2)
@cases("padding", [0, 1, 2], every=2)
def test_places_that_are_no_numbers(mode: int, padding: int) -> None:
    places = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3, 1e10, -1.0])
    grid = torch.cartesian_prod(places, places)[None, None]
    x = wide_data(1, 2, 4, 5).float()
    # Torch's gradient writes outside of its memory there, and may end the process.
    check("aten.grid_sampler_2d.default", x, grid, mode, padding, False, grad=False)
