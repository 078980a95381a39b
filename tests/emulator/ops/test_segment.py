"""Reductions of runs against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 2, generator=G).round(decimals=1)
X[1] = X[2] = X[0]  # equals share a gradient
LENGTHS = torch.tensor([3, 0, 2, 1])
REDUCES = ("max", "min", "sum", "mean", "prod")


@pytest.mark.parametrize(
    ("reduce", "initial"),
    [
        *((reduce, None) for reduce in REDUCES),
        *(
            pytest.param(reduce, 0.5, marks=[] if reduce in ("max", "sum") else pytest.mark.slow)
            for reduce in REDUCES
        ),
    ],
)
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    x = X.clone()
    x[3, 0] = float("nan") if reduce in ("max", "min") else 0.0
    name, rest = "aten.segment_reduce.default", {"unsafe": False, "initial": initial}
    check(name, x, reduce, lengths=LENGTHS, axis=0, **rest)
    check(name, x, reduce, offsets=torch.tensor([0, 3, 3, 5, 6]), axis=0, **rest)
    lengths = torch.tensor([[2, 0], [1, 1], [0, 2], [2, 0], [1, 1], [2, 0]])
    check(name, x, reduce, lengths=lengths, axis=1, **rest)


@pytest.mark.parametrize("dim", [None, 1])
def test_repeat_interleave(dim: int | None) -> None:
    repeats = torch.tensor([2, 3]) if dim else torch.arange(12)
    size = int(repeats.sum())
    check("aten.repeat_interleave.self_Tensor", X, repeats, dim, output_size=size)
    check("aten.repeat_interleave.Tensor", repeats, output_size=size)
