"""Pooling to a given size against torch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [[1, 1], [2, 7], [9, 5], [12, 12]])
def test_adaptive_2d(size: list[int]) -> None:
    check("aten.adaptive_avg_pool2d.default", data(2, 3, 9, 10), size)
    check("aten.adaptive_max_pool2d.default", data(2, 3, 9, 10), size)


@pytest.mark.parametrize("size", [1, 4])
def test_adaptive_1d_and_3d(size: int) -> None:
    check("aten.adaptive_avg_pool1d.default", data(2, 3, 10), [size])
    check("aten.adaptive_max_pool1d.default", data(3, 10), [size])
    check("aten.adaptive_avg_pool3d.default", data(2, 5, 4, 6), [size, 2, 3])
    check("aten.adaptive_max_pool3d.default", data(1, 2, 5, 4, 6), [size, 2, 3])


def test_adaptive_max_of_nan_and_ties() -> None:
    x = torch.randint(0, 2, (2, 7, 7), generator=torch.Generator().manual_seed(0)).float()
    x[0, 2, 3] = x[0, 3, 3] = float("nan")
    x[1, :4] = -float("inf")
    check("aten.adaptive_max_pool2d.default", x, [3, 4])


def test_infinity_stays_where_it_is() -> None:
    """A sum over a table of places must not touch places outside a span."""
    x = data(1, 10)
    x[0, 4] = float("inf")
    check("aten.adaptive_avg_pool1d.default", x, [4])


def test_bfloat16() -> None:
    check("aten.adaptive_avg_pool2d.default", data(2, 3, 8, 8).bfloat16(), [1, 1])
    check_narrow("aten.adaptive_avg_pool2d.default", data(2, 3, 8, 8), [3, 3])


def test_many_places_for_an_output() -> None:
    x = torch.randn(1, 2, 300, generator=torch.Generator().manual_seed(0))
    x[0, 0, 5] = float("nan")
    check("aten.adaptive_max_pool1d.default", x, [2])
    check("aten.adaptive_avg_pool1d.default", x[:, 1:], [7])
    y = torch.randn(1, 1, 12, 13, generator=torch.Generator().manual_seed(0))
    check("aten.adaptive_max_pool2d.default", y, [1, 2])
    check("aten.adaptive_avg_pool2d.default", torch.randn(1, 1, 3, 2), [100, 5])


def test_the_code_does_not_grow_with_the_image() -> None:
    for op in ("adaptive_max_pool2d", "adaptive_avg_pool2d"):
        lower = load_ops()[f"aten.{op}.default"].lower
        code = jax.make_jaxpr(lambda x, lower=lower: lower(x, (7, 1)))(jnp.zeros((1, 1, 500, 512)))
        assert len(str(code).splitlines()) < 1000


def test_longer_axes_than_are_counted_are_refused() -> None:
    lower = load_ops()["aten.adaptive_max_pool1d.default"].lower
    with pytest.raises(OpLimit, match=r"the output's size is 1000000000; .* with 16777216 at most"):
        jax.eval_shape(lambda x: lower(x, (10**9,)), jnp.zeros((1, 3)))
