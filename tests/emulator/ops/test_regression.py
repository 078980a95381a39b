"""Elementwise losses against torch."""

from __future__ import annotations

import itertools

import torch

from emulator.ops.registry import load_ops
from pef_schema.program import DType
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import cases, check, to_jax, torch_op


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def signs(*shape: int) -> torch.Tensor:
    return torch.sign(data(*shape, seed=9))


NAN = float("nan")
X, Y = data(4, 6), data(4, 6, seed=1)


def test_losses() -> None:
    for reduction in (0, 1, 2):
        check("aten.mse_loss.default", X, Y, reduction)
    check("aten.l1_loss.default", X, Y, 1)
    check("aten.l1_loss.default", X, X.clone(), 0)
    check("aten.smooth_l1_loss.default", X, Y, 0)
    check("aten.smooth_l1_loss.default", X, Y, 1, 0.3)
    check("aten.smooth_l1_loss.default", X, Y, 0, 0.0)
    check("aten.huber_loss.default", X, Y, 2)
    check("aten.huber_loss.default", X, Y, 1, 0.3)
    check("aten.soft_margin_loss.default", X, Y, 1, frozen=(1,))
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        check(f"aten.{name}.default", X.bfloat16(), Y.bfloat16(), 1)


def test_gradients_at_ties_and_nan() -> None:
    x, y = torch.tensor([NAN, 1.0, 2.0, NAN, 3.0]), torch.tensor([1.0, NAN, 2.0, NAN, -1.0])
    for beta in (0.0, 1.0):
        check("aten.smooth_l1_loss.default", x, y, 0, beta)
    for name in ("l1_loss", "mse_loss", "huber_loss"):
        check(f"aten.{name}.default", x, y, 0)


def test_divergence() -> None:
    check("aten.kl_div.default", X, torch.softmax(Y, 1), 1)
    check("aten.kl_div.default", X, torch.log_softmax(Y, 1), 1, log_target=True)
    zeros = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0, 0.0]]).expand(4, 6)
    check("aten.kl_div.default", X, zeros, 0, frozen=(1,))


@cases(("weighted", "reduction"), [(True, 0), (False, 1)])
def test_binary_cross_entropy(weighted: bool, reduction: int) -> None:
    weight = data(4, 6, seed=2).abs() if weighted else None
    p = torch.sigmoid(X * 3)
    p[0, :2] = torch.tensor([0.0, 1.0])
    target = torch.sigmoid(Y)
    name = "aten.binary_cross_entropy"
    check(f"{name}.default", p, target, weight, reduction, frozen=(2,))
    positive = data(6, seed=3).abs() if weighted else None
    name = f"{name}_with_logits.default"
    check(name, X * 20, target, weight, positive, reduction, frozen=(2, 3))


def test_poisson() -> None:
    counts = torch.arange(24.0).reshape(4, 6) % 5
    for log_input, full in ((True, False), (True, True), (False, True)):
        x = X if log_input else X.abs() + 0.1
        check("aten.poisson_nll_loss.default", x, counts, log_input, full, 1e-8, 1, frozen=(1,))


def test_margins() -> None:
    check("aten.hinge_embedding_loss.default", X, signs(4, 6), 0.7, 0, frozen=(1,))
    check("aten.margin_ranking_loss.default", X, Y, signs(4, 6), 0.2, 0, frozen=(2,))
    check("aten.margin_ranking_loss.default", X, X.clone(), signs(4, 6), frozen=(2,))
    target = torch.tensor([[3, 0, -1, 1, 1, 1], [5, -1, 0, 0, 0, 0], [-1] * 6, [0, 1, 2, 3, 4, 5]])
    check("aten.multilabel_margin_loss.default", X, target, 0)
    check("aten.multilabel_margin_loss.default", X[0], target[0])


_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32)
_BOTH = tuple(itertools.product(_DTYPES, repeat=2))
_STEPWISE = dict.fromkeys((DType.FLOAT32, DType.FLOAT64), DEFAULT_TOL[DType.BFLOAT16])
"""torch rounds what it makes of a bfloat16 operand before it meets the wider one; we do not."""
_TYPED: dict[str, tuple[object, ...]] = {
    "mse_loss": (),
    "l1_loss": (),
    "smooth_l1_loss": (),
    "huber_loss": (),
    "soft_margin_loss": (),
    "kl_div": (),
    "hinge_embedding_loss": (1.7,),
    "binary_cross_entropy_with_logits": (None, None),
    "poisson_nll_loss": (True, False, 1e-8),
}


@cases("name", _TYPED, every=2)
def test_the_dtype_of_a_loss_is_torchs(name: str) -> None:
    tried = 0
    for at, (first, second) in enumerate(_BOTH):
        x, target = torch.tensor([3, -2, 1, 1]).to(first), torch.tensor([1, -1, 1, -1]).to(second)
        args = (x, target, *_TYPED[name], at % 3)
        try:
            torch_op(f"aten.{name}.default")(*args)
        except (RuntimeError, TypeError):
            continue
        tol = _STEPWISE if torch.bfloat16 in (first, second) else None
        check(f"aten.{name}.default", *args, grad=False, tol=tol)
        tried += 1
    assert tried >= 9


def test_losses_of_integers() -> None:
    for dtype in (torch.int32, torch.uint8):
        x, target = torch.tensor([3, 200, 1]).to(dtype), torch.tensor([1, 0, 1]).to(dtype)
        for reduction in (0, 2):
            check("aten.l1_loss.default", x, target, reduction, grad=False)
            check("aten.hinge_embedding_loss.default", x, target, 1.7, reduction, grad=False)


def test_the_dtype_of_a_ranking_loss_is_torchs() -> None:
    for first, second in _BOTH:
        x, target = torch.tensor([3, -2, 1]).to(first), torch.tensor([1, -1, 1]).to(second)
        check("aten.margin_ranking_loss.default", x, -x, target, 0.5, 0, grad=False)


def test_a_mean_is_rounded_to_the_wider_dtype_alone() -> None:
    x, target = data(64), data(64, seed=1).bfloat16()
    found = load_ops()["aten.mse_loss.default"].lower(to_jax(x), to_jax(target))
    wanted = torch.nn.functional.mse_loss(x, target.float())
    assert abs(float(found) - float(wanted)) < 1e-6


def test_soft_margins_of_unsigned_targets_and_beyond_the_exponential():
    """torch's overflows, and so does its gradient; that of unsigned targets wraps around there."""
    x = torch.tensor([[1.1439], [0.3316]])
    check("aten.soft_margin_loss.default", x, torch.tensor([[5], [4]]).byte(), 2, grad=False)
    far = torch.tensor([-500.0, 500.0, 88.0, -80.0])
    check("aten.soft_margin_loss.default", far, torch.ones(4), 0, frozen=(1,))


def test_a_product_that_overflows_by_itself_is_infinite() -> None:
    """By the optimizations that users run with, a sum would be part of its product."""
    big = torch.tensor([torch.finfo(torch.float32).max])
    half = torch.tensor([-0.5])
    name = "aten.binary_cross_entropy_with_logits.default"
    check(name, -big, half, None, None, 0)
    check(name, -big, -half, None, 4 * -half, 0, frozen=(3,))
    check("aten.kl_div.default", big, big, 0, grad=False)
    check("aten.poisson_nll_loss.default", big, big, True, False, 1e-8, 0, grad=False)
