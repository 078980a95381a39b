"""Fractional max pooling against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize(
    ("size", "out"), [((7, 9), (3, 5)), ((6, 6), (1, 4)), ((5, 6, 7), (2, 3, 4))]
)
def test_fractional_max_pool(
    batch: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> None:
    n = len(size)
    x = torch.randn(*batch, 3, *size, generator=G)
    x[..., 0, 2] = float("nan")
    samples = torch.rand(*(batch or (1,)), 3, n, generator=G)
    kernel = [2, 3, 2][:n]
    name = f"aten.fractional_max_pool{n}d.default"
    check(name, x, kernel, list(out), samples, frozen=(3,))
