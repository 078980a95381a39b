"""Operations over so many elements that their reductions are compiled apart, and over none."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from emulator.ops import _reduction as reduction
from tests.emulator.ops.checks import check

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


def test_softmax() -> None:
    for name in ("softmax", "log_softmax"):
        for shape, dim in (((70, 300), 0), ((70, 300), -1), ((520, 33), 0), ((520, 33), -1)):
            check(f"aten.{name}.int", _scores(*shape), dim)
    for name in ("softmax.int", "log_softmax.int", "_safe_softmax.default"):
        check(f"aten.{name}", _poisoned(70, 300), -1)


def test_cross_entropy() -> None:
    name = "aten.cross_entropy_loss.default"
    for classes in (300, 5000):
        labels = torch.randint(classes, (20_000 // classes + 2,), generator=G)
        labels[1] = -100
        check(name, _scores(len(labels), classes), labels)
    check(name, _scores(2, 20, 24, 24), torch.randint(20, (2, 24, 24), generator=G))
    check(name, _poisoned(70, 300), torch.randint(300, (70,), generator=G), None, 0)


def test_layer_norm() -> None:
    name = "aten.layer_norm.default"
    for shape in ((70, 300), (4, 9, 520)):
        width = shape[-1]
        check(name, _scores(*shape), [width], _scores(width), _scores(width))
        check(name, _scores(*shape), [width])
    check(name, _poisoned(70, 300), [300], _scores(300), _scores(300))
    check(name, _scores(9, 40, 50), [40, 50], _scores(40, 50), None)
    # In float64: over so many rows torch's own float32 gradient is off by more than the tolerance.
    params = [_scores(33).double(), _scores(33).double()]
    check(name, _scores(600, 33).double(), [33], *params)


def test_products() -> None:
    q, k, v = (_scores(2, 3, 64, 16) for _ in range(3))
    check("aten.scaled_dot_product_attention.default", q, k, v, None, 0.0, True)
    check("aten.linear.default", _scores(70, 20), _scores(300, 20) * 0.1, _scores(300))


def test_they_are_large() -> None:
    """The smallest of the cases above are compiled apart; what is smaller is not."""

    def text(rows: int) -> str:
        x = jnp.zeros((rows, 300))
        return jax.jit(lambda a: reduction.reduce_sum(a, (1,))).lower(x).as_text()

    assert "inlineable" in text(70)
    assert "inlineable" not in text(50)


Z = torch.zeros
NOTHING: list[tuple[str, tuple[Any, ...]]] = [
    ("median.default", (Z(0, 3),)),
    ("median.default", (Z(0, dtype=torch.int32),)),
    ("nanmedian.default", (Z(0),)),
    ("group_norm.default", (Z(0, 4, 3), 2, torch.ones(4), Z(4))),
    ("group_norm.default", (Z(2, 4, 0), 2, torch.ones(4), Z(4))),
    *(
        ("scaled_dot_product_attention.default", heads)
        for heads in (
            (torch.ones(2, 3, 4), torch.ones(2, 5, 4), Z(2, 0, 4)),  # no value
            (Z(2, 3, 0), Z(2, 5, 0), Z(2, 5, 0)),  # of no features
        )
    ),
    ("nll_loss_nd.default", (Z(0, 4), Z(0, dtype=torch.long))),
    ("replication_pad1d.default", (torch.ones(1, 2, 1), (-4, 5))),  # edges of what is cropped
    (
        "_unsafe_masked_index.default",
        (Z(0, 3), Z(2, 1, dtype=torch.bool), [Z(2, 1).long(), Z(1, 3).long()], 7.0),
    ),
    # Features of no channels.
    ("convolution.default", (Z(2, 0, 5), Z(3, 0, 3), Z(3), (1,), (0,), (1,), False, (0,), 1)),
]


def test_of_nothing() -> None:
    for name, args in NOTHING:
        check(f"aten.{name}", *args)
