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

WIDE = torch.float64


def data(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_nearest() -> None:
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        check(f"aten.{name}.vec", data(2, 3, 8, 10), (5, 17), None)
        check(f"aten.{name}.vec", data(2, 3, 8, 10), None, (0.7, 1.6))
    check("aten.upsample_nearest2d.vec", data(1, 2, 7, 9).bfloat16(), [14, 18], None)
    check("aten.upsample_nearest2d.default", data(2, 3, 8, 10), [16, 5])
    check("aten.upsample_nearest2d.default", data(2, 3, 8, 10), [12, 25], 1.6, 2.5)
    check("aten.upsample_nearest1d.vec", data(2, 3, 8), [5], None)
    check("aten.upsample_nearest3d.vec", data(1, 2, 3, 4, 5), None, [2.0, 1.0, 1.5])


def test_weighted() -> None:
    for name in ("bilinear2d", "bicubic2d", "bilinear2d_aa", "bicubic2d_aa"):
        full = f"aten.{'_' * name.endswith('aa')}upsample_{name}.vec"
        check(full, data(2, 3, 8, 10), (5, 17), False, None)
        check(full, data(2, 3, 8, 10), None, False, (0.7, 1.6))
        check(full, data(2, 3, 8, 10), (5, 17), True, None)
    check("aten.upsample_bilinear2d.default", data(2, 3, 8, 10), [12, 5], False)
    check("aten.upsample_bilinear2d.default", data(2, 3, 8, 10), [12, 25], False, 1.6, 2.5)
    x = data(1, 2, 7, 9, dtype=torch.float64)
    check("aten.upsample_bilinear2d.vec", x, [5, 11], False, None)
    check("aten.upsample_linear1d.vec", data(2, 3, 8), [13], False, None)
    check("aten.upsample_trilinear3d.vec", data(1, 2, 3, 4, 5), [5, 4, 3], True, None)


def test_a_long_axis_is_cut_without_a_loop_over_it() -> None:
    check("aten.upsample_linear1d.default", data(1, 1, 3000), [7], False)
    check("aten._upsample_bilinear2d_aa.default", data(1, 1, 600, 2), [2, 2], False)


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


def test_scales_that_are_left_out_or_do_not_count() -> None:
    for scales in ((0.5,), (-1.0, 2.0), (None, float("inf"))):
        check("aten.upsample_bilinear2d.default", data(1, 2, 4, 6), [3, 5], False, *scales)
        check("aten.upsample_nearest2d.default", data(1, 2, 4, 6), [3, 5], *scales)


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


@cases(
    ("mode", "padding", "align"),
    [
        *((0, 0, True), (2, 0, True), (0, 2, True)),
        *((0, 1, False), (2, 1, False), (0, 2, False)),
        *((2, 2, True), (2, 2, False)),
    ],
    every=3,
)
def test_planes_at_a_grid(mode: int, padding: int, align: bool) -> None:
    """The grid reaches far outside the image."""
    x, grid = data(2, 3, 5, 6, dtype=WIDE), data(2, 4, 3, 2, dtype=WIDE, seed=1) * 2
    check("aten.grid_sampler_2d.default", x, grid, mode, padding, align)


def test_nearest_and_volumes_at_a_grid() -> None:
    x, grid = data(2, 3, 5, 6, dtype=WIDE), data(2, 4, 3, 2, dtype=WIDE, seed=1) * 2
    check("aten.grid_sampler_2d.default", x, grid, 1, 2, False)
    x, grid = data(1, 2, 4, 3, 5, dtype=WIDE), data(1, 2, 3, 2, 3, dtype=WIDE, seed=1)
    for mode in (0, 1):
        check("aten.grid_sampler.default", x, grid, mode, 0, False)


@cases("mode", [0, 1, 2], every=2)
@cases("padding", [0, 1, 2], every=2)
def test_places_that_are_no_numbers(mode: int, padding: int) -> None:
    places = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3, 1e10, -1.0])
    grid = torch.cartesian_prod(places, places)[None, None]
    x = data(1, 2, 4, 5)
    # Torch's gradient writes outside of its memory there, and may end the process.
    check("aten.grid_sampler_2d.default", x, grid, mode, padding, False, grad=False)
