"""Window functions against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_windows(name: str, length: int) -> None:
    check(f"aten.{name}_window.default", length)
    for periodic in (False, True):
        check(f"aten.{name}_window.periodic", length, periodic, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("hamming_window.periodic_alpha", (0.6,)),
        ("hamming_window.periodic_alpha_beta", (0.6, 0.3)),
        ("kaiser_window.beta", (5.0,)),
    ],
)
def test_window_settings(name: str, more: tuple[Any, ...]) -> None:
    check(f"aten.{name}", 7, True, *more)
