"""Fourier transforms against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

SIZES = [(4, 6), (3, 5), (1, 2)]


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_of_complex_numbers(shape: tuple[int, int], mode: int) -> None:
    x = torch.randn(shape, dtype=torch.complex128)
    check("aten._fft_c2c.default", x, [1, 0], mode, mode != 2)
    check("aten._fft_c2c.default", x.to(torch.complex64), [1], mode, mode == 2)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("onesided", [True, False])
def test_of_real_numbers(shape: tuple[int, int], onesided: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    check("aten._fft_r2c.default", x, [0, 1], 1, onesided)
    check("aten._fft_r2c.default", x.float(), [0], 0, onesided)


@pytest.mark.parametrize("size", [1, 6, 7])
def test_to_real_numbers(size: int) -> None:
    x = torch.randn(3, size // 2 + 1, dtype=torch.complex128)
    check("aten._fft_c2r.default", x, [0, 1], 2, size)
    check("aten._fft_c2r.default", x.to(torch.complex64), [1], 0, size)


def test_of_more_axes_than_xla_takes_at_once() -> None:
    x = torch.randn(2, 3, 2, 3, 2, dtype=torch.complex128)
    check("aten._fft_c2c.default", x, [4, 0, 1, 2, 3], 1, True)
    check("aten._fft_r2c.default", x.real.contiguous(), [4, 0, 1, 2, 3], 2, True)
