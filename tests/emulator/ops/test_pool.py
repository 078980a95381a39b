"""Pooling, to a given size too, and what takes windows of an image, against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

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
    ([3, 3], [2, 2], [1, 1]),
    ([2, 3], [3, 1], [1, 0], 1, True),
    ([4, 4], [2, 2], [1, 1]),
    ([3, 2], [2, 3], [1, 1], [2, 1]),
    ([5, 4], [], [2, 0], 1, True),
]


def test_maxima() -> None:
    for window in WINDOWS[:4]:
        check("aten.max_pool2d.default", data(2, 3, 9, 10), *window)
    for window in (([2],), ([12], [5], [6], 1, True)):
        check("aten.max_pool1d.default", data(2, 3, 14), *window)
        check("aten.max_pool1d_with_indices.default", data(3, 14), *window)
    for window in (([2, 2, 2],), ([3, 2, 3], [2, 1, 2], [1, 1, 0])):
        check("aten.max_pool3d.default", data(2, 2, 5, 4, 6), *window)
        check("aten.max_pool3d_with_indices.default", data(2, 5, 4, 6), *window)
    check("aten.max_pool2d.default", data(2, 2, 6, 6).bfloat16(), [2, 2])
    check("aten.max_pool2d.default", data(2, 6, 6).double(), [3, 3], [2, 2], [1, 1])
    check("aten.max_pool2d.default", data(1, 1, 40, 300), [1, 2], [300, 2000])  # long strides


@cases("window", WINDOWS, every=2)
def test_maxima_of_ties(window: tuple[Any, ...]) -> None:
    check("aten.max_pool2d_with_indices.default", ties(2, 2, 9, 10), *window)


def test_averages() -> None:
    # kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    for window in (
        ([2, 2],),
        ([3, 3], [2, 2], [1, 1], False, False),
        ([3, 2], [2, 3], [1, 1], True, True),
        ([3, 2], [2, 3], [1, 1], True, False),
        ([3, 3], [1, 1], 0, False, True, 5),
        ([9, 10],),
    ):
        check("aten.avg_pool2d.default", data(2, 3, 9, 10), *window)
    check("aten.avg_pool2d.default", data(2, 3, 8, 8).bfloat16(), [2, 2])
    check("aten.avg_pool1d.default", data(2, 3, 14), [3], [2], [1], True, False)
    check("aten.avg_pool1d.default", data(3, 14), [2])
    check("aten.avg_pool3d.default", data(1, 2, 5, 4, 6), [2, 1, 3], [2, 1, 1], [1, 0, 1])


# kernel, stride, padding, dilation, ceil_mode
LONG_WINDOWS: list[tuple[Any, ...]] = [
    ([100], [1], [50], [1], False),
    ([100], [3], [20], [2], True),
    ([65], [64], [0], [1], True),
    ([300], [300], [0], [1], False),
]


@cases("window", LONG_WINDOWS, every=2)
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


def test_padding_of_many_times_the_data_is_refused() -> None:
    lower = load_ops()["aten.max_pool1d.default"].lower
    with pytest.raises(OpLimit, match="the padded data, in elements, is 134217730; the device"):
        jax.eval_shape(lambda x: lower(x, (2**27,), (1,), (2**26,)), jnp.zeros((1, 1, 2)))


def test_adaptive() -> None:
    for size in ([1, 1], [9, 5], [12, 12]):
        check("aten.adaptive_avg_pool2d.default", data(2, 3, 9, 10), size)
        check("aten.adaptive_max_pool2d.default", data(2, 3, 9, 10), size)
    for size in (1, 4):
        check("aten.adaptive_avg_pool1d.default", data(2, 3, 10), [size])
        check("aten.adaptive_max_pool1d.default", data(3, 10), [size])
    check("aten.adaptive_avg_pool3d.default", data(2, 5, 4, 6), [4, 2, 3])
    check("aten.adaptive_max_pool3d.default", data(1, 2, 5, 4, 6), [4, 2, 3])
    check("aten.adaptive_avg_pool2d.default", data(2, 3, 8, 8).bfloat16(), [1, 1])
    check_narrow("aten.adaptive_avg_pool2d.default", data(2, 3, 8, 8), [3, 3])


def test_adaptive_of_nan_infinity_and_ties() -> None:
    x = torch.randint(0, 2, (2, 7, 7), generator=torch.Generator().manual_seed(0)).float()
    x[0, 2, 3] = x[0, 3, 3] = NAN
    x[1, :4] = -INF
    check("aten.adaptive_max_pool2d.default", x, [3, 4])
    # A sum over a table of places must not touch places outside a span.
    x = data(1, 10)
    x[0, 4] = INF
    check("aten.adaptive_avg_pool1d.default", x, [4])


def test_many_places_for_an_output() -> None:
    x = data(1, 2, 300)
    x[0, 0, 5] = NAN
    check("aten.adaptive_max_pool1d.default", x, [2])
    check("aten.adaptive_avg_pool1d.default", x[:, 1:], [7])
    check("aten.adaptive_max_pool2d.default", data(1, 1, 12, 13), [1, 2])
    check("aten.adaptive_avg_pool2d.default", data(1, 1, 3, 2), [100, 5])


def test_the_code_does_not_grow_with_the_image() -> None:
    for op in ("adaptive_max_pool2d", "adaptive_avg_pool2d"):
        lower = load_ops()[f"aten.{op}.default"].lower
        code = jax.make_jaxpr(lambda x, lower=lower: lower(x, (7, 1)))(jnp.zeros((1, 1, 500, 512)))
        assert len(str(code).splitlines()) < 1000


def test_longer_axes_than_are_counted_are_refused() -> None:
    lower = load_ops()["aten.adaptive_max_pool1d.default"].lower
    with pytest.raises(OpLimit, match=r"the output's size is 1000000000; .* with 16777216 at most"):
        jax.eval_shape(lambda x: lower(x, (10**9,)), jnp.zeros((1, 3)))


G = torch.Generator().manual_seed(0)


@cases("batch", [(2,), ()])
@cases(("size", "out"), [((7, 9), (3, 5)), ((6, 6), (1, 4)), ((5, 6, 7), (2, 3, 4))], every=2)
def test_fractional_max_pool(
    batch: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> None:
    n = len(size)
    x = torch.randn(*batch, 3, *size, generator=G)
    x[..., 0, 2] = float("nan")
    samples = torch.rand(*(batch or (1,)), 3, n, generator=G)
    kernel = [2, 3, 2][:n]
    name = f"aten.fractional_max_pool{n}d.default"
    check(name, x, kernel, list(out), samples, frozen=(3,))


def test_columns() -> None:
    # kernel, dilation, padding, stride
    for window, batch in (
        (([2, 2], [1, 1], [0, 0], [1, 1]), (2,)),
        (([3, 2], [1, 2], [1, 0], [2, 1]), (2,)),
        (([2, 2], [1, 1], [1, 1], [3, 3]), ()),
    ):
        x = data(*batch, 3, 7, 6)
        check("aten.im2col.default", x, *window)
        check("aten.col2im.default", torch.ops.aten.im2col(x, *window), [7, 6], *window)
    # More than 64 taps are gathered, and added back by one scatter.
    x, window = data(1, 2, 12, 30), ((9, 9), (1, 2), (3, 2), (2, 3))
    check("aten.im2col.default", x, *window)
    check("aten.col2im.default", torch.nn.functional.unfold(x, *window), (12, 30), *window)


def test_unpool() -> None:
    values, indices = torch.ops.aten.max_pool2d_with_indices(data(2, 3, 6, 8), [2, 2])
    check("aten.max_unpool2d.default", values, indices, [6, 8])
    values, indices = torch.ops.aten.max_pool3d_with_indices(data(2, 3, 4, 4, 4), [2, 2, 2])
    check("aten.max_unpool3d.default", values, indices, [4, 4, 4], [2, 2, 2], [0, 0, 0])
