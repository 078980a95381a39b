"""Convolutions against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.parametrize(
    ("x", "w", "args"),
    [
        ((2, 3, 9), (4, 3, 3), ()),
        ((3, 9), (4, 3, 3), ([2], [1])),
        ((2, 4, 8, 7), (6, 4, 3, 2), ([1, 1], [1, 0])),
        ((2, 4, 8, 7), (6, 2, 3, 3), ([2], [1], [2], 2)),
        ((2, 4, 8, 8), (8, 1, 3, 3), ([1, 1], [1, 1], [1, 1], 4)),
        ((4, 8, 8), (6, 4, 1, 1), ([2, 2],)),
        ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), ([1, 2, 1], [0, 1, 1])),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_conv(x: tuple[int, ...], w: tuple[int, ...], args: tuple[Any, ...], bias: bool) -> None:
    name = f"aten.conv{len(w) - 2}d.default"
    check(name, randn(*x), randn(*w), randn(w[0]) if bias else None, *args)
