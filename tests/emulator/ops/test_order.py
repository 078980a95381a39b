"""Sorting, ranks and searching against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check

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


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool) -> None:
    check("aten.sort.stable", TIES, stable=True, dim=1, descending=descending)
    check("aten.sort.default", WITH_NAN, -1, descending)
    check("aten.argsort.stable", TIES.long(), stable=True, dim=0, descending=descending)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    check("aten.topk.default", X, 2, 1, largest)


@pytest.mark.parametrize("name", ["kthvalue", "median", "nanmedian"])
def test_ranks(name: str) -> None:
    args = (2, 1) if name == "kthvalue" else (1, True)
    check(f"aten.{name}.{'default' if name == 'kthvalue' else 'dim'}", X, *args)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_of_everything(name: str) -> None:
    check(f"aten.{name}.default", TIES)
    check(f"aten.{name}.default", WITH_NAN)


def test_median_beside_nan() -> None:
    check("aten.median.dim", WITH_NAN, 2)
    check("aten.nanmedian.dim", WITH_NAN[1:], 2)


def test_mode() -> None:
    check("aten.mode.default", TIES, 1)
    check("aten.mode.default", TIES.long(), -1, True)


@pytest.mark.parametrize("name", ["sort", "mode", "msort"])
def test_scalars(name: str) -> None:
    check(f"aten.{name}.default", SCALAR)


@pytest.mark.parametrize("right", [False, True])
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
