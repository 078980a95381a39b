"""Connectionist temporal classification against torch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from emulator.ops.registry import load_ops
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import assert_matches, to_jax

G = torch.Generator().manual_seed(0)
LOG_PROBS = torch.randn(6, 3, 4, generator=G).log_softmax(-1)
TARGETS = torch.tensor([[2, 2, 2], [1, 3, 1], [3, 1, 2]])


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("joined", [False, True])
def test_ctc_loss(zero_infinity: bool, reduction: str, joined: bool) -> None:
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
    with jax.enable_x64(True):
        rest = [to_jax(t) for t in (targets, steps, lengths)]
        got, back = jax.vjp(
            lambda x: lower(x, *rest, 3, 0, reduction, zero_infinity), to_jax(scores)
        )
        (found,) = back(jnp.full(got.shape, 0.5, jnp.float32))
    assert_matches(got, want.detach(), tol=DEFAULT_TOL, what="loss")
    assert_matches(found, slope, tol=DEFAULT_TOL, what="gradient")
