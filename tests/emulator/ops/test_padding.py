"""Padding against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
PADS = [(1, 2, 2, 1), (0, 3, 0, 0), (-1, 2, 1, -2)]


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_modes(mode: str, pad: tuple[int, ...]) -> None:
    check("aten.pad.default", X, pad, mode)


@pytest.mark.parametrize("pad", [(1, 2), (-1, 0, 2, 1), (0, 0, 0, 0, 1, -2)])
def test_constant(pad: tuple[int, ...]) -> None:
    check("aten.constant_pad_nd.default", X, pad, 2.5)
    check("aten.pad.default", X, pad)


def test_by_dimension() -> None:
    check("aten._pad_circular.default", X, [1, 2, 0, 1], grad=False)
    check("aten.reflection_pad1d.default", X[0], [2, 1])
    check("aten.reflection_pad3d.default", X, [1, 1, 1, 1, 1, 1])
    check("aten.replication_pad3d.default", X, [3, 1, 2, 3, 4, 1])


@pytest.mark.parametrize("mode", range(4))
def test_modes_by_number(mode: int) -> None:
    check("aten._pad_enum.default", X[0], [2, 1], mode, grad=False)
