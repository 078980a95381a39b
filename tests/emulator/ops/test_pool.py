"""Max and average pooling over windows against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check

NAN, INF = float("nan"), float("inf")


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ties(*shape: int) -> torch.Tensor:
    """Few distinct values, some NaN, a plane of -inf: every way to choose a maximum."""
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).float()
    x[0, 0, 2, 3] = x[0, 0, 3, 3] = x[-1, 0, 4, 4] = NAN
    x[0, 1] = -INF
    return x


# kernel, stride, padding, dilation, ceil_mode
WINDOWS: list[tuple[Any, ...]] = [
    ([2, 2],),
    ([2, 2], [2, 2], 0, 1, True),
    ([3, 3], [2, 2], [1, 1]),
    ([3, 3], [1, 1], [1, 1]),
    ([2, 3], [3, 1], [1, 0], 1, True),
    ([3, 2], [2, 3], [1, 1], [2, 1]),
    ([4, 4], [2, 2], [1, 1]),
    ([5, 4], [], [2, 0], 1, True),
]


@pytest.mark.parametrize("window", WINDOWS[::2])
def test_max_pool2d(window: tuple[Any, ...]) -> None:
    check("aten.max_pool2d.default", data(2, 3, 9, 10), *window)


@pytest.mark.parametrize("window", WINDOWS)
def test_max_pool2d_with_indices_and_ties(window: tuple[Any, ...]) -> None:
    check("aten.max_pool2d_with_indices.default", ties(2, 2, 9, 10), *window)


@pytest.mark.parametrize("window", [([2],), ([3], [2], [1]), ([12], [5], [6], 1, True)])
def test_max_pool1d(window: tuple[Any, ...]) -> None:
    check("aten.max_pool1d.default", data(2, 3, 14), *window)
    check("aten.max_pool1d_with_indices.default", data(3, 14), *window)


@pytest.mark.parametrize("window", [([2, 2, 2],), ([3, 2, 3], [2, 1, 2], [1, 1, 0])])
def test_max_pool3d(window: tuple[Any, ...]) -> None:
    check("aten.max_pool3d.default", data(2, 2, 5, 4, 6), *window)
    check("aten.max_pool3d_with_indices.default", data(2, 5, 4, 6), *window)


def test_max_pool_dtypes() -> None:
    check("aten.max_pool2d.default", data(2, 2, 6, 6).bfloat16(), [2, 2])
    check("aten.max_pool2d.default", data(2, 6, 6).double(), [3, 3], [2, 2], [1, 1])


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGES: list[tuple[Any, ...]] = [
    ([2, 2],),
    ([3, 3], [2, 2], [1, 1]),
    ([3, 3], [2, 2], [1, 1], False, False),
    ([3, 2], [2, 3], [1, 1], True, True),
    ([3, 2], [2, 3], [1, 1], True, False),
    ([3, 3], [1, 1], 0, False, True, 5),
    ([9, 10],),
]


@pytest.mark.parametrize("window", AVERAGES)
def test_avg_pool2d(window: tuple[Any, ...]) -> None:
    check("aten.avg_pool2d.default", data(2, 3, 9, 10), *window)


def test_avg_pool1d_and_3d() -> None:
    check("aten.avg_pool1d.default", data(2, 3, 14), [3], [2], [1], True, False)
    check("aten.avg_pool1d.default", data(3, 14), [2])
    check("aten.avg_pool3d.default", data(1, 2, 5, 4, 6), [2, 1, 3], [2, 1, 1], [1, 0, 1])


def test_avg_pool_bfloat16() -> None:
    check("aten.avg_pool2d.default", data(2, 3, 8, 8).bfloat16(), [2, 2])


# kernel, stride, padding, dilation, ceil_mode
LONG_WINDOWS: list[tuple[Any, ...]] = [
    ([100], [1], [50], [1], False),
    ([100], [3], [20], [2], True),
    ([65], [64], [0], [1], True),
    ([300], [300], [0], [1], False),
]


@pytest.mark.parametrize("window", LONG_WINDOWS)
def test_long_windows(window: tuple[Any, ...]) -> None:
    """They are cut in halves, not place by place: see ``emulator.ops._long_windows``."""
    x = data(2, 1, 300)
    x[0, 0, 7] = x[0, 0, 9] = NAN
    x[1, 0, :90] = -INF
    check("aten.max_pool1d.default", x, *window)
    check("aten.max_pool1d_with_indices.default", x, *window, grad=False)
    kernel, stride, padding, _, ceil_mode = window
    check("aten.avg_pool1d.default", data(2, 1, 300), kernel, stride, padding, ceil_mode, False)


def test_long_windows_of_two_axes() -> None:
    x = data(1, 2, 20, 90)
    x[0, 0, 3, 3] = NAN
    x[0, 1, :10] = -INF
    window = ((9, 70), (2, 3), (4, 4), (1, 1), True)
    check("aten.max_pool2d_with_indices.default", x, *window)
    check("aten.avg_pool2d.default", data(1, 2, 20, 90), *window[:3], True, True, None)


def test_the_code_of_long_windows_does_not_grow_with_them() -> None:
    x = jnp.zeros((1, 1, 10**5))
    for op in ("max_pool1d", "avg_pool1d"):
        lower = load_ops()[f"aten.{op}.default"].lower

        def loss(x: jax.Array, lower: Any = lower) -> jax.Array:
            return lower(x, (40_000,), (1,)).sum()

        assert len(str(jax.make_jaxpr(jax.grad(loss))(x)).splitlines()) < 1000


def test_long_strides() -> None:
    check("aten.max_pool2d.default", data(1, 1, 40, 300), [1, 2], [300, 2000])


def test_padding_of_many_times_the_data_is_refused() -> None:
    lower = load_ops()["aten.max_pool1d.default"].lower
    with pytest.raises(OpLimit, match="the padded data, in elements, is 134217730; the device"):
        jax.eval_shape(lambda x: lower(x, (2**27,), (1,), (2**26,)), jnp.zeros((1, 1, 2)))
