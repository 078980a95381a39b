"""Products in every order of axes: XLA:CPU has no kernel for some that it makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from emulator.kernels.convolutions import input_gradient
from emulator.kernels.products import plain_product
from emulator.kernels.target import lowered_for, target_of
from emulator.kernels.windows import Window
from emulator.native.library import without_native
from tests.samba.session.loading import loaded
from tests.samba.worlds import World

SIZES = {"b": 2, "c": 3, "i": 8, "j": 16, "k": 24, "l": 5}


def _orders(left: str, right: str, out: str) -> list[str]:
    every = product(permutations(left), permutations(right), permutations(out))
    return [f"{''.join(a)},{''.join(b)}->{''.join(c)}" for a, b, c in every]


SPECS = [
    *_orders("ij", "jk", "ik"),
    *_orders("bij", "bjk", "bik")[::5],
    *_orders("ilj", "jk", "ilk")[::3],
    *_orders("ijl", "ljk", "ik")[::3],
    *("bcij,bcjk->bcki", "cilj,cjk->clik", "bqhd,bkhd->bhqk", "bhqk,bqhd->bkhd"),
]
"""Every order of a product of matrices, and every so many-th of a batch's, of products with two
free axes, and of those that are summed over two; attention's with its heads inside."""


def _operands(spec: str) -> tuple[np.ndarray, np.ndarray]:
    sizes = {**SIZES, "q": 8, "h": 3, "d": 16}
    left, right = spec.split("->")[0].split(",")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, [sizes[c] for c in axes]) / 8 for axes in (left, right))
    return a, b


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bfloat16", "float32"])
def test_every_order_of_axes_has_a_kernel(dtype):
    """Multiples of an eighth up to one: float32 holds sums of a few products exactly."""
    given = [_operands(spec) for spec in SPECS]

    def run(*pairs):
        return [plain_product(s, *pair) for s, pair in zip(SPECS, pairs, strict=True)]

    pairs = [tuple(jnp.asarray(x, dtype) for x in pair) for pair in given]
    for spec, found, (a, b) in zip(SPECS, jax.jit(run)(*pairs), given, strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, np.einsum(spec, a, b), err_msg=spec)


def test_a_left_factor_that_is_chosen_from_a_transpose_has_a_kernel():
    """XLA moves the transpose behind the choice, and folds it into the product."""

    def factor(a: jax.Array) -> jax.Array:
        return jnp.where(a.T > 0, a.T, 0)

    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.integers(-8, 9, (16, 16)) / 8, jnp.bfloat16) for _ in range(2))
    found = jax.jit(lambda a, b: plain_product("ij,jk->ik", factor(a), b))(a, b)
    wide = np.asarray(factor(a), np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_array_equal(found, wide)


def barriers(dtype: Any, rows: int, summed: int, columns: int) -> int:
    """How many barriers the weight gradient of a linear layer has."""
    a, b = jnp.ones((summed, rows), dtype), jnp.ones((summed, columns), dtype)
    traced = jax.make_jaxpr(lambda a, b: plain_product("no,ni->oi", a, b))(a, b)
    return str(traced).count("optimization_barrier")


def test_where_factors_are_copied():
    """A copy takes longer than a product with few columns, and large ones are as fast without."""
    assert barriers(jnp.float32, 256, 96, 64) == 1
    assert barriers(jnp.float32, 1024, 96, 1) == barriers(jnp.float32, 1024, 4096, 64) == 0
    assert barriers(jnp.bfloat16, 256, 96, 64) == 2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bfloat16", "float32"])
def test_what_several_chips_divide_is_not_copied(dtype):
    """XLA gathers a flat array, all of it, on each chip."""
    with lowered_for(target_of("cpu", 2)):
        assert barriers(dtype, 256, 96, 64) == 0
    with lowered_for(target_of("cuda")):
        assert barriers(dtype, 256, 96, 64) == 0


ODD = ("ij,jk->ki", "bij,bjk->bki", "bij,jik->bk", "ij,j->i", "i,k->ki", "ij,ij->")


def test_odd_sizes():
    cases = [(spec, size) for spec in ODD for size in (0, 1, 2)]
    given = [
        [np.ones([size] * len(axes)) for axes in spec.split("->")[0].split(",")]
        for spec, size in cases
    ]

    def run(pairs):
        return [plain_product(spec, *p) for (spec, _), p in zip(cases, pairs, strict=True)]

    pairs = [[jnp.asarray(x, jnp.bfloat16) for x in pair] for pair in given]
    for case, found, pair in zip(cases, jax.jit(run)(pairs), given, strict=True):
        np.testing.assert_array_equal(found, np.einsum(case[0], *pair), err_msg=str(case))


class Turned(nn.Module):
    """A product whose axes are exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 48).bfloat16() / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,jk->ki", x, self.w).float().pow(2).mean()


class Experts(nn.Module):
    """The batch's axis is the second one of a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 64, 48).bfloat16() / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, None, :] * torch.arange(1, 7, dtype=torch.bfloat16)[None, :, None]
        return torch.einsum("nej,ejl->nel", h, self.w).float().pow(2).mean()


class Heads(nn.Module):
    """Attention by einsum, the heads where the linear layers leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x.reshape(2, 16, 64)).view(2, 16, 4, 16) for layer in self.qkv)
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k).float() / 4, -1)
        y = torch.einsum("bhqk,bkhd->bqhd", weights.bfloat16(), v)
        return y.float().pow(2).mean()


@pytest.mark.parametrize("build", [Turned, Experts, Heads])
def test_models_train(build: type[nn.Module], tmp_path: Path):
    """Their plans failed when they ran; bfloat16 keeps eight bits."""
    x = torch.randn(32, 64).bfloat16()
    scene = loaded(World(name="rows", model=build, inputs=lambda: {"x": x}), tmp_path)
    wanted = scene.host(x)
    wanted.backward()
    (loss,) = scene.run()
    assert loss.item() == pytest.approx(wanted.item(), rel=2e-2)
    for name, p in scene.model.named_parameters():
        grad = scene.host.get_parameter(name).grad
        assert grad is not None
        assert (p.sn_grad - grad).abs().max() <= 2e-2 * grad.abs().max(), name


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
    """The result by XLA's own kernels, and whether a convolution is in it."""
    narrow = tensors[0].dtype == torch.bfloat16
    arrays = [
        jnp.asarray(t.detach().float().numpy(), jnp.bfloat16 if narrow else jnp.float32)
        for t in tensors
    ]
    with without_native():
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
    assert window.tiles(size) == (math.prod(kernel) > 1)
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
    assert not window.tiles(size)


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
