"""Distances and similarities against torch."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.ops.checks import check


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, Y, Z = data(4, 6), data(4, 6, seed=1), data(4, 6, seed=2)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_pairwise_distance(p: float) -> None:
    check("aten.pairwise_distance.default", X, Y, p, 1e-6, True)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_cdist(p: float) -> None:
    check("aten.cdist.default", data(2, 4, 6), data(2, 5, 6, seed=1), p)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_pdist(p: float) -> None:
    check("aten.pdist.default", X, p)


def test_cdist_of_equal_rows() -> None:
    check("aten.cdist.default", X, X.clone())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cosine_similarity(dim: int) -> None:
    check("aten.cosine_similarity.default", X, Y, dim)


def test_cosine_similarity_of_zero_and_broadcast() -> None:
    x = X.clone()
    x[1] = 0
    check("aten.cosine_similarity.default", x, Y)
    check("aten.cosine_similarity.default", X, Y[:1])


@pytest.mark.parametrize("reduction", [0, 1])
def test_cosine_embedding_loss(reduction: int) -> None:
    target = torch.tensor([1.0, -1.0, -1.0, 1.0])
    check("aten.cosine_embedding_loss.default", X, Y, target, 0.1, reduction, frozen=(2,))


@pytest.mark.parametrize("swap", [False, True])
def test_triplet_margin_loss(swap: bool) -> None:
    check("aten.triplet_margin_loss.default", X, Y, Z, 1.0, 2.0, 1e-6, swap, 0)


def test_cosine_embedding_loss_of_integers() -> None:
    """Two of True are 2, and 100 times 1 is no byte's overflow."""
    target = torch.tensor([1.0, -1.0])
    bools = torch.tensor([[True, True, False], [True, False, True]])
    check("aten.cosine_embedding_loss.default", bools, ~bools | bools, target, 0.1, 0, grad=False)
    ones = torch.ones(2, 200, dtype=torch.uint8)
    check("aten.cosine_embedding_loss.default", ones, ones, target, 0.1, 0, grad=False)


def test_each_of_equal_differences_has_the_whole_gradient() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    y = torch.tensor([[0.0, -1.0, 1.5], [0.0, 0.0, 0.0]])
    check("aten.cdist.default", x, y, float("inf"))
    check("aten.pdist.default", torch.cat([x, y]), float("inf"))
