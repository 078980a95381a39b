"""Histograms against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(40, generator=G), torch.rand(40, generator=G)
POINTS = torch.randn(20, 2, generator=G)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_histogram(density: bool, weight: torch.Tensor | None) -> None:
    check("aten.histogram.bin_ct", X, 7, weight=weight, density=density, grad=False)
    edges = torch.tensor([-1.0, 0.0, 0.25, 2.0])
    check("aten.histogram.bins_tensor", X, edges, weight=weight, density=density, grad=False)


def test_histogram_edges() -> None:
    whole = torch.arange(6.0)  # every element lies on an edge, the last one in the last bin
    check("aten.histogram.bin_ct", whole, 5, grad=False)
    check("aten.histogram.bin_ct", whole, 4, range=[1.0, 3.0], grad=False)
    check("aten.histogram.bin_ct", torch.ones(3), 2, grad=False)
    check("aten.histogram.bin_ct", torch.ones(0), 2, grad=False)


def test_histogram_of_several_variables() -> None:
    check("aten._histogramdd_bin_edges.default", POINTS, [3, 4], grad=False)
    check("aten._histogramdd_from_bin_cts.default", POINTS, [3, 4], grad=False)
    edges = [torch.tensor([-1.0, 0, 2]), torch.tensor([-2.0, 0.5, 1])]
    check("aten._histogramdd_from_bin_tensors.default", POINTS, edges, density=True, grad=False)
