"""Sorting, ranks, searching, histograms and cumulative operations against torch."""

from __future__ import annotations

from typing import Any

import torch

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN = float("nan")
G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
TIES = (X * 2).round()
TIES[0, 0, 0] = -0.0
WITH_NAN = X.clone()
WITH_NAN[0, 1] = NAN
WITH_NAN[1, 2, 3] = NAN
ZEROS = X.clone()
ZEROS[0, 1, 2] = 0
ZEROS[1, 1:3] = 0
SCALAR = torch.tensor(2.0)
EDGES = torch.tensor([-1.0, 0, 0, 1])


def test_sorting() -> None:
    for descending in (False, True):
        check("aten.sort.stable", TIES, stable=True, dim=1, descending=descending)
        check("aten.sort.default", WITH_NAN, -1, descending)
        check("aten.argsort.stable", TIES.long(), stable=True, dim=0, descending=descending)
    for name in ("sort", "msort"):
        check(f"aten.{name}.default", SCALAR)
    check("aten.sort.default", torch.zeros(0, 3))


def test_ranks() -> None:
    check("aten.topk.default", X, 2, 1, False)
    check("aten.topk.default", X, 2, 1, True)
    check("aten.kthvalue.default", X, 2, 1)
    for name in ("median", "nanmedian"):
        check(f"aten.{name}.dim", X, 1, True)
        check(f"aten.{name}.default", TIES)
        check(f"aten.{name}.default", WITH_NAN)
    check("aten.median.dim", WITH_NAN, 2)
    check("aten.nanmedian.dim", WITH_NAN[1:], 2)
    check("aten.mode.default", TIES, 1)
    check("aten.mode.default", TIES.long(), -1, True)
    check("aten.mode.default", SCALAR)


def test_search() -> None:
    for right in (False, True):
        check("aten.searchsorted.Tensor", EDGES, TIES, right=right)
        check("aten.searchsorted.Tensor", X, X, sorter=X.argsort(-1), right=right)
        check("aten.searchsorted.Tensor", torch.tensor([1, 2, 3]), X, right=right)
        check("aten.bucketize.Tensor", TIES, EDGES, right=right, out_int32=True)
        check("aten.bucketize.Scalar", 0.5, EDGES, right=right)


def test_histograms() -> None:
    check("aten.histc.default", X, 10, grad=False)
    check("aten.histc.default", X, 10, -1.0, 1.0, grad=False)
    check("aten.histc.default", torch.ones(4), 3, grad=False)
    sample, weights = torch.randn(40, generator=G), torch.rand(40, generator=G)
    edges = torch.tensor([-1.0, 0.0, 0.25, 2.0])
    for density, weight in ((False, None), (True, None), (False, weights), (True, weights)):
        options: dict[str, Any] = {"weight": weight, "density": density}
        check("aten.histogram.bin_ct", sample, 7, grad=False, **options)
        check("aten.histogram.bins_tensor", sample, edges, grad=False, **options)
    whole = torch.arange(6.0)  # every element lies on an edge, the last one in the last bin
    check("aten.histogram.bin_ct", whole, 5, grad=False)
    check("aten.histogram.bin_ct", whole, 4, range=[1.0, 3.0], grad=False)
    check("aten.histogram.bin_ct", torch.ones(3), 2, grad=False)
    check("aten.histogram.bin_ct", torch.ones(0), 2, grad=False)


def test_histograms_of_several_variables() -> None:
    points = torch.randn(20, 2, generator=G)
    check("aten._histogramdd_bin_edges.default", points, [3, 4], grad=False)
    check("aten._histogramdd_from_bin_cts.default", points, [3, 4], grad=False)
    edges = [torch.tensor([-1.0, 0, 2]), torch.tensor([-2.0, 0.5, 1])]
    check("aten._histogramdd_from_bin_tensors.default", points, edges, density=True, grad=False)


def test_scans() -> None:
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        check(f"aten.{name}.default", ZEROS, 0)
        check(f"aten.{name}.default", ZEROS, -1)
    for name in ("cumsum", "cumprod", "cummax"):
        check(f"aten.{name}.default", SCALAR, 0)
        check(f"aten.{name}.default", TIES.int(), 1)
    for name in ("cummax", "cummin"):
        check(f"aten.{name}.default", TIES, 1)
        check(f"aten.{name}.default", WITH_NAN, 1)
    check("aten.cumsum.default", torch.zeros(0, 3), 0)
    check("aten.cumsum.default", X > 0, 1)
    check("aten.cumsum.default", X, 1, dtype=torch.float64)
    check_narrow("aten.cumsum.default", torch.randn(2, 200), 1)


def test_differences() -> None:
    check("aten.diff.default", X, 2, 1)
    check("aten.diff.default", X, 1, -1, X[..., :1], X)
    check("aten.diff.default", X > 0, 1, 0)
