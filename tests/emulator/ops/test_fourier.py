"""Fourier transforms against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.traced import check_function

C128 = torch.complex128
fft = torch.fft


def drawn(*shape: int, dtype: torch.dtype = C128) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def test_of_complex_numbers() -> None:
    check("aten._fft_c2c.default", drawn(3, 6), [1, 0], 1, True)
    check("aten._fft_c2c.default", drawn(4, 5, dtype=torch.complex64), [1], 2, False)


@cases("onesided", [True, False])
def test_of_real_numbers(onesided: bool) -> None:
    check("aten._fft_r2c.default", drawn(3, 6, dtype=torch.float64), [0, 1], 1, onesided)


@cases("size", [6, 7])
def test_to_real_numbers(size: int) -> None:
    check("aten._fft_c2r.default", drawn(3, size // 2 + 1), [0, 1], 2, size)


def test_of_more_axes_than_xla_takes_at_once() -> None:
    check("aten._fft_c2c.default", drawn(2, 3, 2, 3, 2), [4, 0, 1, 2, 3], 1, True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 6), (3, 5), (1, 2), (1, 1)])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_in_all_modes(shape: tuple[int, int], mode: int) -> None:
    x = drawn(*shape)
    for forward in (True, False):
        check("aten._fft_c2c.default", x, [1, 0], mode, forward)
        check("aten._fft_c2c.default", x.to(torch.complex64), [0], mode, forward)
    for onesided in (True, False):
        check("aten._fft_r2c.default", x.real.contiguous(), [0, 1], mode, onesided)
        check("aten._fft_r2c.default", x.real.float().contiguous(), [1], mode, onesided)
    for size in (2 * shape[1] - 1, 2 * shape[1] - 2):
        if size:
            check("aten._fft_c2r.default", x, [0, 1], mode, size)
            check("aten._fft_c2r.default", x.to(torch.complex64), [1], mode, size)


def _framed(signal: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """To frames and back, with overlaps, an edge that is reflected, and a length that is cut."""
    spectrum = torch.stft(signal, 8, hop_length=2, window=window, return_complex=True)
    back = torch.istft(spectrum, 8, hop_length=2, window=window, length=19)
    return spectrum.abs().square().sum() + (back * signal[:19]).sum()


def test_functions_of_torch() -> None:
    """Those that are made of the three, in one program."""

    def everything(z: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            fft.fftn(z, norm="ortho"),
            fft.ifft2(fft.fftshift(z), s=(3, 7)),
            fft.rfft(x, n=9),
            fft.irfftn(z, s=(4, 5), norm="forward"),
            fft.hfft(z, n=7),
            fft.ihfft(x),
            fft.fftn(x, dim=(0, 1)).real,
            _framed(x.flatten(), w),
        )

    z, x, w = drawn(4, 6), drawn(4, 6, dtype=torch.float64), torch.hann_window(8).double()
    check_function(everything, [t.requires_grad_() for t in (z, x)] + [w])


TRANSFORMS: dict[str, Callable[..., torch.Tensor]] = {
    f"{kind}{dims}": getattr(fft, f"{kind}{dims}")
    for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    for dims in ("", "2", "n")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_each_function_in_its_settings(name: str, norm: str) -> None:
    function = TRANSFORMS[name]
    real = name.startswith(("rfft", "ihfft"))
    x = drawn(4, 3, 6, dtype=torch.float64 if real else C128).requires_grad_()
    one = name.endswith("fft")
    size = {"n": 5} if one else {"s": (5, 4)}
    where = {"dim": 1} if one else {"dim": (2, 0)}

    def everywhere(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            function(x, norm=norm),
            function(x, norm=norm, **size),
            function(x, norm=norm, **where),
            function(x, norm=norm, **size, **where),
        )

    check_function(everywhere, [x])
    check_function(
        everywhere,
        [
            drawn(4, 3, 6, dtype=x.dtype)
            .to(torch.float32 if real else torch.complex64)
            .requires_grad_()
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": False},
        {"onesided": False},
        {"normalized": True},
        {"win_length": 6},
        {"hop_length": 3},
        {"pad_mode": "constant"},
        {"pad_mode": "replicate"},
    ],
)
def test_frames_in_their_settings(options: dict[str, Any]) -> None:
    window = torch.hamming_window(options.get("win_length", 8)).double()

    def there(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 8, window=window, return_complex=True, **options)

    x = drawn(2, 24, dtype=torch.float64).requires_grad_()
    check_function(there, [x, window])
    spectrum = there(x, window).detach().requires_grad_()
    back = {k: v for k, v in options.items() if k != "pad_mode"}

    def again(z: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.istft(z, 8, window=window, **back)

    if options.get("center", True):
        check_function(again, [spectrum, window])
        check_function(
            lambda z, w: torch.istft(z, 8, window=w, length=17, **back), [spectrum, window]
        )
