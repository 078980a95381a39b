"""Losses, distances and similarities against torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from emulator.ops.registry import load_ops
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import Comparison, assert_matches, cases, check, compare, to_jax
from tests.emulator.ops.narrow import check_narrow

CROSS = "aten.cross_entropy_loss.default"
LABELS = torch.tensor([0, 4, -100, 2, 1, 1])


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(n: int = 5) -> torch.Tensor:
    return data(n, seed=1).abs() + 0.1


def labels(*shape: int, classes: int = 5) -> torch.Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(2))


def test_labels() -> None:
    for reduction, smoothing, weight in (
        (0, 0.0, weights()),
        (1, 0.0, None),
        (2, 0.0, None),
        (0, 0.1, None),
        (1, 0.1, weights()),
        (1, 0.0, weights()),
        (2, 0.1, weights()),
    ):
        check(CROSS, data(6, 5) * 3, LABELS, weight, reduction, -100, smoothing, frozen=(2,))
    check(CROSS, data(2, 5, 3, 4), labels(2, 3, 4), weights(), 1, 2, 0.1, frozen=(2,))
    check(CROSS, data(2, 5, 3, 4), labels(2, 3, 4), None, 0)
    check(CROSS, data(5), torch.tensor(3))
    check(CROSS, data(6, 5).double(), LABELS)
    check_narrow(CROSS, data(6, 40), labels(6, classes=40))


def test_probabilities() -> None:
    target = torch.softmax(data(6, 5, seed=3), 1)
    for reduction, smoothing, weight in ((0, 0.1, weights()), (1, 0.0, None), (2, 0.1, None)):
        check(CROSS, data(6, 5), target, weight, reduction, -100, smoothing, frozen=(2,))
    check(CROSS, data(5), torch.softmax(data(5, seed=3), 0))
    check(CROSS, data(2, 5, 3), torch.softmax(data(2, 5, 3, seed=3), 1))


def test_extreme_scores() -> None:
    inf = math.inf
    scores = torch.tensor([[1e4, -1e4, 0.0], [-inf, 0.0, 1.0], [math.nan, 0.0, 1.0]])
    check(CROSS, scores, torch.tensor([0, 2, 1]), None, 0)
    check(CROSS, scores[:2], torch.tensor([1, 0]), None, 0)


def test_nll() -> None:
    plane = (data(2, 5, 3, 4), labels(2, 3, 4))
    for weight, reduction in ((weights(), 0), (weights(), 1), (None, 1), (None, 2)):
        args = (weight, reduction, -100)
        check("aten.nll_loss_nd.default", data(6, 5), LABELS, *args, frozen=(2,))
        check("aten.nll_loss_forward.default", data(6, 5), LABELS, *args, frozen=(2,))
        check("aten.nll_loss2d_forward.default", *plane, *args, frozen=(2,))


def test_everything_ignored_is_nan_in_the_mean() -> None:
    for name in (CROSS, "aten.nll_loss_nd.default"):
        check(name, data(3, 5), torch.full((3,), -100))
        check(name, data(3, 5), torch.full((3,), -100), None, 2)


def lowered(scores: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[jax.Array, ...]:
    """Loss and gradient on the device."""
    with jax.enable_x64(True):
        lower = load_ops()[CROSS].lower

        def both(x: jax.Array, label: jax.Array) -> tuple[jax.Array, ...]:
            value, pull = jax.vjp(lambda x: lower(x, label, None, reduction), x)
            return value, pull(jnp.ones_like(value))[0]

        return jax.jit(both)(to_jax(scores), to_jax(target))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_narrow_labels(dtype: torch.dtype) -> None:
    target = labels(6) if dtype == torch.uint8 else LABELS
    got = lowered(data(6, 5), target.to(dtype), 1)
    for g, w in zip(got, lowered(data(6, 5), target, 1), strict=True):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


def test_int16_labels_wrap() -> None:
    """Label 40000 arrives as -25536 in int16; -100 still means ignored."""
    scores = data(3, 50257)
    target = torch.tensor([40000, -100, 7])
    wrapped = torch.tensor([40000 - 65536, -100, 7], dtype=torch.int16)
    for g, w in zip(lowered(scores, wrapped, 1), lowered(scores, target, 1), strict=True):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


def test_labels_out_of_range_count_as_ignored() -> None:
    scores = data(4, 5)
    loss, gradient = lowered(scores, torch.tensor([0, 5, -1, 3]), 1)
    kept = [0, 3]
    want, want_gradient = lowered(scores[kept], torch.tensor([0, 3]), 1)
    np.testing.assert_allclose(np.asarray(loss), np.asarray(want), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(gradient)[kept], np.asarray(want_gradient), rtol=1e-6)
    assert not np.asarray(gradient)[[1, 2]].any()


X, Y, Z = data(4, 6), data(4, 6, seed=1), data(4, 6, seed=2)


def test_distances() -> None:
    for p in (1.0, 2.0, 3.0, math.inf):
        check("aten.cdist.default", data(2, 4, 6), data(2, 5, 6, seed=1), p)
        check("aten.pairwise_distance.default", X, Y, p, 1e-6, True)
    check("aten.pdist.default", X, 1.0)
    check("aten.pdist.default", X, 2.0)
    check("aten.cdist.default", X, X.clone())
    # Each of equal differences has the whole gradient.
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    y = torch.tensor([[0.0, -1.0, 1.5], [0.0, 0.0, 0.0]])
    check("aten.cdist.default", x, y, math.inf)
    check("aten.pdist.default", torch.cat([x, y]), math.inf)


def test_similarities() -> None:
    with_zero = X.clone()
    with_zero[1] = 0
    check("aten.cosine_similarity.default", X, Y, 0)
    check("aten.cosine_similarity.default", X, Y, -1)
    check("aten.cosine_similarity.default", with_zero, Y)
    check("aten.cosine_similarity.default", X, Y[:1])
    target = torch.tensor([1.0, -1.0, -1.0, 1.0])
    for reduction in (0, 1):
        check("aten.cosine_embedding_loss.default", X, Y, target, 0.1, reduction, frozen=(2,))
    for swap in (False, True):
        check("aten.triplet_margin_loss.default", X, Y, Z, 1.0, 2.0, 1e-6, swap, 0)


def test_cosine_embedding_loss_of_integers() -> None:
    """Two of True are 2, and 100 times 1 is not a byte's overflow."""
    target = torch.tensor([1.0, -1.0])
    bools = torch.tensor([[True, True, False], [True, False, True]])
    check("aten.cosine_embedding_loss.default", bools, ~bools | bools, target, 0.1, 0, grad=False)
    ones = torch.ones(2, 200, dtype=torch.uint8)
    check("aten.cosine_embedding_loss.default", ones, ones, target, 0.1, 0, grad=False)


G = torch.Generator().manual_seed(0)
LOG_PROBS = torch.randn(6, 3, 4, generator=G).log_softmax(-1)
TARGETS = torch.tensor([[2, 2, 2], [1, 3, 1], [3, 1, 2]])


@cases(
    ("reduction", "joined", "zero_infinity"),
    itertools.product(["none", "mean", "sum"], [False, True], [False, True]),
    every=5,  # so each value of each option is among the fast ones
)
def test_ctc_loss(reduction: str, joined: bool, zero_infinity: bool) -> None:
    """The first target has equal neighbours, the last sample has no time for its target."""
    steps, lengths = torch.tensor([6, 5, 1]), torch.tensor([3, 0, 2])
    targets = TARGETS
    if joined:
        targets = torch.cat([row[:n] for row, n in zip(TARGETS, lengths.tolist(), strict=True)])
    scores = LOG_PROBS.clone().requires_grad_()
    want = F.ctc_loss(
        scores, targets, steps, lengths, reduction=reduction, zero_infinity=zero_infinity
    )
    (slope,) = torch.autograd.grad(want, scores, torch.full(want.shape, 0.5))
    lower = load_ops()["samba.ctc_loss.default"].lower

    def run(x: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
        got, back = jax.vjp(lambda x: lower(x, *rest, 3, 0, reduction, zero_infinity), x)
        (found,) = back(jnp.full(got.shape, 0.5, jnp.float32))
        return got, found

    def judge(results: list[Any]) -> None:
        got, found = results[0]
        assert_matches(got, want.detach(), tol=DEFAULT_TOL, what="loss")
        assert_matches(found, slope, tol=DEFAULT_TOL, what="gradient")

    with jax.enable_x64(True):
        call = tuple(to_jax(t) for t in (LOG_PROBS, targets, steps, lengths))
    what = f"{zero_infinity=}, {reduction=}, {joined=}"
    compare(Comparison(what=what, run=run, calls=[call], judge=judge))
