"""Triangles, diagonals, repeats, windows and writes by position against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
IMAGE = torch.randn(2, 8, 3, 4, generator=G)
LAST = 9223372036854775807

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("tril.default", (X, -1)),
    ("triu.default", (X, 2)),
    ("tril.default", (X > 0,)),
    ("repeat.default", (X, [2, 1, 1, 3])),
    ("repeat.default", (X, [0, 1, 1])),
    ("tile.default", (X, [2])),
    ("roll.default", (X, [1, -2], [0, 2])),
    ("roll.default", (X, [7])),
    ("flip.default", (X, [0, -1])),
    ("flip.default", (torch.tensor(1.0), [0])),
    ("fliplr.default", (X,)),
    ("flipud.default", (X,)),
    ("rot90.default", (X, 3, [1, 2])),
    ("rot90.default", (X, -2, [2, 0])),
    ("repeat_interleave.self_int", (X, 2)),
    ("repeat_interleave.self_int", (X, 3, -2)),
    ("diagonal.default", (X, -1, 2, 0)),
    ("diag.default", (X[0], 1)),
    ("diag.default", (X[0, 0], -2)),
    ("diagflat.default", (X[0], 1)),
    ("diag_embed.default", (X, 1, 2, 0)),
    ("diag_embed.default", (X, -2)),
    ("block_diag.default", ([X[0], X[0, 0], torch.tensor(2.0)],)),
    ("unfold.default", (X, -1, 3, 1)),
    ("unfold.default", (X, 1, 2, 2)),
    ("unfold.default", (X, 1, 1, 5)),
    ("pixel_shuffle.default", (IMAGE, 2)),
    ("pixel_unshuffle.default", (IMAGE.reshape(2, 2, 4, 12), 2)),
    ("channel_shuffle.default", (IMAGE, 4)),
    ("as_strided.default", (X, [3, 2], [2, 1], 3)),
    ("as_strided.default", (X, [3, 2], [1, 1])),
    ("select_scatter.default", (X, torch.randn(3, 5), 1, -1)),
    ("diagonal_scatter.default", (X, torch.randn(4, 2), 1, 2, 0)),
    ("diagonal_scatter.default", (X, torch.randn(4, 3), -1, 2, 0)),
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_cases(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)


@pytest.mark.parametrize(
    "place", [(1, 0, 2), (1, -3, 99, 2), (2, 1, 4, 3), (0, 0, LAST), (1, 3, 1)]
)
def test_slice_scatter(place: tuple[int, ...]) -> None:
    source = torch.randn(torch.ops.aten.slice.Tensor(X, *place).shape)
    check("aten.slice_scatter.default", X, source, *place)


def test_long_windows_along_a_dimension() -> None:
    x = torch.randn(2, 90, 3, generator=torch.Generator().manual_seed(0))
    check("aten.unfold.default", x, 1, 70, 3)


def test_linalg_diagonal_is_of_the_last_dimensions() -> None:
    check("aten.linalg_diagonal.default", torch.randn(3, 2, 4))
    check("aten.linalg_diagonal.default", torch.randn(3, 2, 4), offset=1, dim1=0)
