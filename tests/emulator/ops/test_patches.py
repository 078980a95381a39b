"""Unfolding, folding and unpooling against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

# kernel, dilation, padding, stride
WINDOWS = [
    ([2, 2], [1, 1], [0, 0], [1, 1]),
    ([3, 2], [1, 2], [1, 0], [2, 1]),
    ([2, 2], [1, 1], [1, 1], [3, 3]),
]


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("window", "batch"), [(WINDOWS[0], (2,)), (WINDOWS[1], (2,)), (WINDOWS[2], ())]
)
def test_columns(window: tuple[list[int], ...], batch: tuple[int, ...]) -> None:
    x = data(*batch, 3, 7, 6)
    check("aten.im2col.default", x, *window)
    columns = torch.ops.aten.im2col(x, *window)
    check("aten.col2im.default", columns, [7, 6], *window)


def test_unpool() -> None:
    values, indices = torch.ops.aten.max_pool2d_with_indices(data(2, 3, 6, 8), [2, 2])
    check("aten.max_unpool2d.default", values, indices, [6, 8])
    values, indices = torch.ops.aten.max_pool3d_with_indices(data(2, 3, 4, 4, 4), [2, 2, 2])
    check("aten.max_unpool3d.default", values, indices, [4, 4, 4], [2, 2, 2], [0, 0, 0])


def test_many_taps() -> None:
    """More than 64 are gathered, and added back by one scatter."""
    x = torch.randn(1, 2, 12, 30, generator=torch.Generator().manual_seed(0))
    window = ((9, 9), (1, 2), (3, 2), (2, 3))
    check("aten.im2col.default", x, *window)
    columns = torch.nn.functional.unfold(x, *window)
    check("aten.col2im.default", columns, (12, 30), *window)
