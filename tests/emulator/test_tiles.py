"""Input gradients of windows that lie side by side: products, with torch's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.kernels.conv_by_tiles import are_tiles
from emulator.kernels.convolutions import input_gradient
from emulator.kernels.rules import PLAIN, chosen_by
from emulator.kernels.windows import Window


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _bound(terms: int) -> float:
    """Of a float32 sum of so many products of normal numbers, added in any order."""
    return 4e-7 * (4 + terms)


def _window(kernel: Sequence[int], out: Sequence[int], **other: Sequence[int]) -> Window:
    n = len(kernel)
    fields: dict[str, tuple[int, ...]] = {
        "stride": tuple(kernel), "dilation": (1,) * n, "low": (0,) * n, "high": (0,) * n,
        **{name: tuple(value) for name, value in other.items()},
    }  # fmt: skip
    return Window(kernel=tuple(kernel), out=tuple(out), **fields)


def _run(compute: Callable[..., Any], *tensors: torch.Tensor) -> tuple[np.ndarray, bool]:
    """The result by the rule that measures nothing, and whether a convolution is in it."""
    narrow = tensors[0].dtype == torch.bfloat16
    arrays = [
        jnp.asarray(t.detach().float().numpy(), jnp.bfloat16 if narrow else jnp.float32)
        for t in tensors
    ]
    with chosen_by(PLAIN):
        lowered: Any = jax.jit(compute).lower(*arrays)
    result = lowered.compile()(*arrays)
    assert result.dtype == np.float32
    return np.asarray(result), "stablehlo.convolution" in lowered.as_text()


@given(
    axes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3),
    images=st.integers(1, 3), channels=st.integers(1, 5), features=st.integers(1, 5),
    bad=st.sampled_from([1.0, math.nan, math.inf]), narrow=st.booleans(),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_tiles_agree(
    axes: list[tuple[int, int]], images: int, channels: int, features: int, bad: float,
    narrow: bool,
) -> None:  # fmt: skip
    """NaN and infinity in the places where torch has them."""
    kernel, out = (tuple(part) for part in zip(*axes, strict=True))
    window, size = _window(kernel, out), tuple(k * o for k, o in axes)
    dtype = torch.bfloat16 if narrow else torch.float32
    w = _random(1, features, channels, *kernel).to(dtype)
    g = _random(2, images, features, *out).to(dtype)
    g.view(-1)[g.numel() // 2] = bad
    torch_conv = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
    wanted = torch_conv[len(axes) - 1](g.float(), w.float(), None, kernel)
    got, _ = _run(lambda g, w: input_gradient(g, w, window, 1, size), g, w)
    assert are_tiles(window, size) == (math.prod(kernel) > 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=_bound(features))


@pytest.mark.parametrize(
    ("window", "size"),
    [
        pytest.param(_window((2,), (2,)), (5,), id="left over"),
        pytest.param(_window((4,), (1,), low=(1,), high=(1,)), (4,), id="shifted"),
        pytest.param(_window((2,), (2,), stride=(1,)), (4,), id="overlapping"),
        pytest.param(_window((2,), (2,), dilation=(2,)), (4,), id="dilated"),
        pytest.param(_window((1, 1), (4, 4)), (4, 4), id="single elements"),
    ],
)
def test_other_windows_are_none(window: Window, size: tuple[int, ...]) -> None:
    assert not are_tiles(window, size)


@pytest.mark.parametrize(("size", "convolved"), [((8, 8), False), ((9, 8), True)])
def test_they_are_products(size: tuple[int, ...], convolved: bool) -> None:
    """Of more channels than another candidate takes; with a row left over they are convolved."""
    window = _window((2, 2), (4, 4))
    g, w = _random(0, 1, 3, 4, 4), _random(1, 3, 32, 2, 2)
    assert _run(lambda g, w: input_gradient(g, w, window, 1, size), g, w)[1] == convolved


def test_what_is_no_tile_goes_where_it_lies() -> None:
    """Sizes alone do not tell: with padding, one window of four sees three elements of four."""
    window = _window((4,), (1,), low=(1,), high=(1,))
    g, w = _random(0, 1, 3, 1), _random(1, 3, 2, 4)
    got, _ = _run(lambda g, w: input_gradient(g, w, window, 1, (4,)), g, w)
    x = torch.zeros(1, 2, 4, requires_grad=True)
    (wanted,) = torch.autograd.grad(torch.conv1d(x, w, None, 4, 1), x, g)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=_bound(3))
