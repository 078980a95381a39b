"""Operations over so many elements that their reductions are compiled apart, and over none."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from emulator.ops import _reduction as reduction
from tests.emulator.ops.checks import cases, check

G = torch.Generator().manual_seed(0)
NAN, INF = math.nan, math.inf


def _scores(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=G)


def _poisoned(*shape: int) -> torch.Tensor:
    """A NaN, an infinity of each sign and a line of nothing but -inf, far from each other."""
    x = _scores(*shape)
    rows = x.reshape(-1, shape[-1])
    rows[1, 2], rows[3, 4], rows[5, 6] = NAN, INF, -INF
    rows[7] = -INF
    return x


@cases("shape", [(70, 300), (520, 33)])
@cases("dim", [0, -1])
@cases("name", ["softmax", "log_softmax"])
def test_softmax(name: str, dim: int, shape: tuple[int, ...]) -> None:
    check(f"aten.{name}.int", _scores(*shape), dim)


@cases("name", ["softmax.int", "log_softmax.int", "_safe_softmax.default"])
def test_softmax_of_nan_and_infinity(name: str) -> None:
    check(f"aten.{name}", _poisoned(70, 300), -1)


@cases("classes", [300, 5000])
def test_cross_entropy(classes: int) -> None:
    rows = 20_000 // classes + 2
    labels = torch.randint(classes, (rows,), generator=G)
    labels[1] = -100
    check("aten.cross_entropy_loss.default", _scores(rows, classes), labels)


def test_cross_entropy_by_place() -> None:
    labels = torch.randint(20, (2, 24, 24), generator=G)
    check("aten.cross_entropy_loss.default", _scores(2, 20, 24, 24), labels)


def test_cross_entropy_of_nan_and_infinity() -> None:
    labels = torch.randint(300, (70,), generator=G)
    check("aten.cross_entropy_loss.default", _poisoned(70, 300), labels, None, 0)


@cases("shape", [(70, 300), (4, 9, 520)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    width = shape[-1]
    check("aten.layer_norm.default", _scores(*shape), [width], _scores(width), _scores(width))
    check("aten.layer_norm.default", _scores(*shape), [width])


def test_layer_norm_of_short_rows() -> None:
    # In float64: over so many rows torch's own float32 gradient is off by more than the tolerance.
    params = [_scores(33).double(), _scores(33).double()]
    check("aten.layer_norm.default", _scores(600, 33).double(), [33], *params)


def test_layer_norm_over_two_axes() -> None:
    check("aten.layer_norm.default", _scores(9, 40, 50), [40, 50], _scores(40, 50), None)


def test_layer_norm_of_nan_and_infinity() -> None:
    check("aten.layer_norm.default", _poisoned(70, 300), [300], _scores(300), _scores(300))


def test_attention() -> None:
    q, k, v = (_scores(2, 3, 64, 16) for _ in range(3))
    check("aten.scaled_dot_product_attention.default", q, k, v, None, 0.0, True)


def test_linear_with_bias() -> None:
    check("aten.linear.default", _scores(70, 20), _scores(300, 20) * 0.1, _scores(300))


def test_they_are_large() -> None:
    """The smallest of the cases above are compiled apart; what is smaller is not."""

    def text(rows: int) -> str:
        x = jnp.zeros((rows, 300))
        return jax.jit(lambda a: reduction.reduce_sum(a, (1,))).lower(x).as_text()

    assert "inlineable" in text(70)
    assert "inlineable" not in text(50)


Z = torch.zeros
_NO_ROW = Z(0, dtype=torch.long)
_CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "median": ("aten.median.default", (Z(0, 3),)),
    "median of whole numbers": ("aten.median.default", (Z(0, dtype=torch.int32),)),
    "nanmedian": ("aten.nanmedian.default", (Z(0),)),
    "group norm": ("aten.group_norm.default", (Z(0, 4, 3), 2, torch.ones(4), Z(4))),
    "group norm of no places": ("aten.group_norm.default", (Z(2, 4, 0), 2, torch.ones(4), Z(4))),
    "attention to no values": (
        "aten.scaled_dot_product_attention.default",
        (torch.ones(2, 3, 4), torch.ones(2, 5, 4), Z(2, 0, 4)),
    ),
    "attention of no features": (
        "aten.scaled_dot_product_attention.default",
        (Z(2, 3, 0), Z(2, 5, 0), Z(2, 5, 0)),
    ),
    "nll": ("aten.nll_loss_nd.default", (Z(0, 4), _NO_ROW)),
    "edges of what is cropped": ("aten.replication_pad1d.default", (torch.ones(1, 2, 1), (-4, 5))),
    "masked index": (
        "aten._unsafe_masked_index.default",
        (Z(0, 3), Z(2, 1, dtype=torch.bool), [Z(2, 1).long(), Z(1, 3).long()], 7.0),
    ),
    "features of no channels": (
        "aten.convolution.default",
        (Z(2, 0, 5), Z(3, 0, 3), Z(3), (1,), (0,), (1,), False, (0,), 1),
    ),
}


@cases("name", _CASES)
def test_of_nothing(name: str) -> None:
    op, args = _CASES[name]
    check(op, *args)
