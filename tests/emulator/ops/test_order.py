"""Sorting, ranks, searching, histograms and cumulative operations against torch."""

from __future__ import annotations

import torch

from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN = float("nan")
G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
TIES = (X * 2).round()
TIES[0, 0, 0] = -0.0
WITH_NAN = X.clone()
WITH_NAN[0, 1] = NAN
WITH_NAN[1, 2, 3] = NAN
SCALAR = torch.tensor(2.0)
EDGES = torch.tensor([-1.0, 0, 0, 1])


@cases("descending", [False, True])
def test_sort(descending: bool) -> None:
    check("aten.sort.stable", TIES, stable=True, dim=1, descending=descending)
    check("aten.sort.default", WITH_NAN, -1, descending)
    check("aten.argsort.stable", TIES.long(), stable=True, dim=0, descending=descending)


@cases("largest", [False, True])
def test_topk(largest: bool) -> None:
    check("aten.topk.default", X, 2, 1, largest)


@cases("name", ["kthvalue", "median", "nanmedian"])
def test_ranks(name: str) -> None:
    args = (2, 1) if name == "kthvalue" else (1, True)
    check(f"aten.{name}.{'default' if name == 'kthvalue' else 'dim'}", X, *args)


@cases("name", ["median", "nanmedian"])
def test_medians_of_everything(name: str) -> None:
    check(f"aten.{name}.default", TIES)
    check(f"aten.{name}.default", WITH_NAN)


def test_median_beside_nan() -> None:
    check("aten.median.dim", WITH_NAN, 2)
    check("aten.nanmedian.dim", WITH_NAN[1:], 2)


def test_mode() -> None:
    check("aten.mode.default", TIES, 1)
    check("aten.mode.default", TIES.long(), -1, True)


@cases("name", ["sort", "mode", "msort"])
def test_scalars(name: str) -> None:
    check(f"aten.{name}.default", SCALAR)


@cases("right", [False, True])
def test_search(right: bool) -> None:
    check("aten.searchsorted.Tensor", EDGES, TIES, right=right)
    check("aten.searchsorted.Tensor", X, X, sorter=X.argsort(-1), right=right)
    check("aten.searchsorted.Tensor", torch.tensor([1, 2, 3]), X, right=right)
    check("aten.bucketize.Tensor", TIES, EDGES, right=right, out_int32=True)
    check("aten.bucketize.Scalar", 0.5, EDGES, right=right)


def test_histogram() -> None:
    check("aten.histc.default", X, 10, grad=False)
    check("aten.histc.default", X, 10, -1.0, 1.0, grad=False)
    check("aten.histc.default", torch.ones(4), 3, grad=False)


SAMPLE, WEIGHT = torch.randn(40, generator=G), torch.rand(40, generator=G)
POINTS = torch.randn(20, 2, generator=G)


@cases("density", [False, True])
@cases("weight", [None, WEIGHT])
def test_histogram_by_weights(density: bool, weight: torch.Tensor | None) -> None:
    check("aten.histogram.bin_ct", SAMPLE, 7, weight=weight, density=density, grad=False)
    edges = torch.tensor([-1.0, 0.0, 0.25, 2.0])
    check("aten.histogram.bins_tensor", SAMPLE, edges, weight=weight, density=density, grad=False)


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


SCANNED = torch.randn(3, 4, 5, generator=G)
SCANNED_TIES = (SCANNED * 2).round()
ZEROS = SCANNED.clone()
ZEROS[0, 1, 2] = 0
ZEROS[1, 1:3] = 0
SCANNED_NAN = SCANNED.clone()
SCANNED_NAN[0, 1] = NAN


@cases("dim", [0, -1])
@cases("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_scans(name: str, dim: int) -> None:
    check(f"aten.{name}.default", ZEROS, dim)


@cases("name", ["cumsum", "cumprod", "cummax"])
def test_scalars_and_integers(name: str) -> None:
    check(f"aten.{name}.default", SCALAR, 0)
    check(f"aten.{name}.default", SCANNED_TIES.int(), 1)


def test_scan_into_another_dtype() -> None:
    check("aten.cumsum.default", SCANNED > 0, 1)
    check("aten.cumsum.default", SCANNED, 1, dtype=torch.float64)
    check_narrow("aten.cumsum.default", torch.randn(2, 200), 1)


@cases("name", ["cummax", "cummin"])
def test_running_extremes(name: str) -> None:
    check(f"aten.{name}.default", SCANNED_TIES, 1)
    check(f"aten.{name}.default", SCANNED_NAN, 1)


def test_diff() -> None:
    check("aten.diff.default", SCANNED, 2, 1)
    check("aten.diff.default", SCANNED, 1, -1, SCANNED[..., :1], SCANNED)
    check("aten.diff.default", SCANNED > 0, 1, 0)
