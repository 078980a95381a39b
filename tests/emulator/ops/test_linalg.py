"""Linear algebra against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check


def regular(*batch: int) -> torch.Tensor:
    """Well-conditioned 4 x 4 matrices."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*batch, 4, 4, generator=generator, dtype=torch.float64) + 4 * torch.eye(4)


@pytest.mark.parametrize("power", [-2, 0, 5])
def test_matrix_power(power: int) -> None:
    check("aten.linalg_matrix_power.default", regular(2), power)


@pytest.mark.parametrize(
    "name", ["linalg_inv", "inverse", "linalg_det", "linalg_slogdet", "logdet"]
)
def test_square(name: str) -> None:
    check(f"aten.{name}.default", regular(2))


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool) -> None:
    x = regular(2)
    check("aten.linalg_cholesky.default", x @ x.mT, upper=upper)


@pytest.mark.parametrize(
    ("b", "kwargs"), [((2, 4, 3), {}), ((2, 4), {}), ((2, 3, 4), {"left": False}), ((4,), {})]
)
def test_solve(b: tuple[int, ...], kwargs: dict[str, Any]) -> None:
    a = regular() if b == (4,) else regular(2)
    right = torch.linspace(-1, 1, torch.Size(b).numel(), dtype=torch.float64).reshape(b)
    check("aten.linalg_solve.default", a, right, **kwargs)


@pytest.mark.parametrize(
    ("left", "upper", "unitriangular"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, False)],
)
def test_solve_triangular(left: bool, upper: bool, unitriangular: bool) -> None:
    a = regular(2).triu() if upper else regular(2).tril()
    if unitriangular:
        a = a / 8 + torch.eye(4) - torch.diag_embed(torch.diagonal(a / 8, dim1=-2, dim2=-1))
    b = torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(2, 4, 4)
    name = "aten.linalg_solve_triangular.default"
    check(name, a, b, upper=upper, left=left, unitriangular=unitriangular)


def test_cross() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 3, 5, generator=generator) for _ in range(2))
    check("aten.linalg_cross.default", a, b, dim=1)
