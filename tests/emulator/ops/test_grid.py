"""Sampling at a grid against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


slow = pytest.mark.slow  # each value of each option stands in a quick case too


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    [
        (0, 0, True),
        (0, 1, False),
        (0, 2, False),
        (2, 2, True),
        pytest.param(0, 2, True, marks=slow),
        pytest.param(2, 0, True, marks=slow),
        pytest.param(2, 1, False, marks=slow),
        pytest.param(2, 2, False, marks=slow),
    ],
)
def test_planes(mode: int, padding: int, align: bool) -> None:
    """The grid reaches far outside the image."""
    grid = data(2, 4, 3, 2, seed=1) * 2
    check("aten.grid_sampler_2d.default", data(2, 3, 5, 6), grid, mode, padding, align)


def test_nearest() -> None:
    grid = data(2, 4, 3, 2, seed=1) * 2
    check("aten.grid_sampler_2d.default", data(2, 3, 5, 6), grid, 1, 2, False)


@pytest.mark.parametrize("mode", [0, 1])
def test_volumes(mode: int) -> None:
    grid = data(1, 2, 3, 2, 3, seed=1)
    check("aten.grid_sampler.default", data(1, 2, 4, 3, 5), grid, mode, 0, False)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_places_that_are_no_numbers(mode: int, padding: int) -> None:
    places = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3, 1e10, -1.0])
    grid = torch.cartesian_prod(places, places)[None, None]
    x = data(1, 2, 4, 5).float()
    # Torch's gradient writes outside of its memory there, and may end the process.
    check("aten.grid_sampler_2d.default", x, grid, mode, padding, False, grad=False)
