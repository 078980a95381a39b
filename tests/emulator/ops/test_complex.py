"""Complex numbers and their parts against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.traced import check_function

C64, C128 = torch.complex64, torch.complex128


def drawn(*shape: int, dtype: torch.dtype = C64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def with_zero(*shape: int, dtype: torch.dtype = C64) -> torch.Tensor:
    """Numbers of which one is zero and one is real."""
    x = drawn(*shape, dtype=dtype)
    x.view(-1)[0] = 0
    x.view(-1)[1] = -2
    return x


def test_many_functions_in_one_program() -> None:
    """Values and gradients, holomorphic or not, from and to real numbers."""

    def everything(z: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = torch.view_as_complex(x.reshape(-1, 2))
        return (
            z.abs() + z.angle() + z.real * z.imag,
            torch.view_as_real(z.sgn() * w.conj()),
            z * x[:3] / w + (1 - 2j) - x[0] * 1j,
            torch.polar(x, x * 2).sum() + torch.complex(x, x.square()).prod(),
            z.exp() + w.log() * z.sqrt() + z.sin() / w.cosh() + z.tanh(),
            z**2 + w**-1 + z**1.5 + z ** (0.5 - 1j) + z**w,
            z @ w.mH + torch.einsum("ij,kj->ik", z, w),
            torch.vdot(z[0], w[1]) + torch.linalg.vecdot(z, w).sum() + z.norm() + w.var(),
            torch.where(x[:3] > 0, z, w).cumsum(0) + torch.cat([z, w])[[0, 3, 1, 2]][:2],
            pairs.mean() + torch.linalg.solve(z[:, :2], w[:, :2]).sum(),
            (z == w).sum() + z.isfinite().sum(),
        )

    z, w = with_zero(2, 3, dtype=C128) + 1, drawn(2, 3, dtype=C128, seed=1)
    x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    check_function(everything, [t.requires_grad_() for t in (z, w, x)])


@cases("name", ["abs", "angle", "sgn"])
def test_at_zero_and_on_the_axis(name: str) -> None:
    check(f"aten.{name}.default", with_zero(2, 3))


@pytest.mark.slow
def test_parts_and_functions() -> None:
    for dtype in (C64, C128):
        for name in ("abs", "angle", "sgn", "_conj_physical", "view_as_real", "neg"):
            check(f"aten.{name}.default", with_zero(2, 3, dtype=dtype))
    for name in ("real", "imag", "_conj", "mH", "adjoint"):
        check(f"aten.{name}.default", drawn(2, 3))
    for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "reciprocal", "square"):
        check(f"aten.{name}.default", drawn(3, 4, dtype=C128))
    for dtype in (torch.float32, torch.float64):
        x, y = torch.randn(2, 3, dtype=dtype), torch.randn(3, dtype=dtype)
        check("aten.complex.default", x, y)
        check("aten.polar.default", x, y)
        check("aten.view_as_complex.default", torch.randn(3, 2, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mul.Tensor", (drawn(2, 3), drawn(3, seed=1))),
        ("mul.Tensor", (drawn(2, 3), torch.randn(3))),
        ("div.Tensor", (drawn(2, 3), drawn(3, seed=1))),
        ("mul.Scalar", (torch.randn(3), 1 + 2j)),
        ("add.Scalar", (torch.randn(3, dtype=torch.float64), 1 + 2j)),
        ("mul.Scalar", (torch.arange(3), 2j)),
        ("sub.Tensor", (torch.randn(2, 3), drawn(3))),
        ("pow.Tensor_Tensor", (drawn(3), drawn(3, seed=1))),
        ("pow.Tensor_Scalar", (drawn(3), 3)),
        ("pow.Tensor_Scalar", (drawn(3), -1)),
        ("pow.Tensor_Scalar", (drawn(3), 0.5 + 1j)),
        ("matmul.default", (drawn(2, 3), drawn(3, 4, seed=1))),
        ("vdot.default", (drawn(3), drawn(3, seed=1))),
        ("linear.default", (drawn(2, 3), drawn(4, 3, seed=1), drawn(4, seed=2))),
        ("sum.default", (drawn(40, 300),)),
        ("prod.default", (drawn(4),)),
        ("cumsum.default", (drawn(4, 5), 1)),
        ("linalg_vector_norm.default", (with_zero(4, 5),)),
        ("eq.Tensor", (drawn(3), drawn(3))),
        ("isfinite.default", (drawn(3),)),
    ],
)
def test_arithmetic(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)
