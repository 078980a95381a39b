"""Products in every order of axes: XLA:CPU has no kernel for some that it makes of them."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import samba
from emulator.kernels.products import plain_product
from emulator.kernels.rules import kernels_for
from samba import utils

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
    with kernels_for("cpu", chips=2):
        assert barriers(dtype, 256, 96, 64) == 0
    with kernels_for("cuda"):
        assert barriers(dtype, 256, 96, 64) == 0


@pytest.mark.parametrize(
    "spec", ["ij,jk->ki", "bij,bjk->bki", "bij,jik->bk", "ij,j->i", "i,k->ki", "ij,ij->"]
)
@pytest.mark.parametrize("size", [0, 1, 2])
def test_odd_sizes(spec: str, size: int):
    left, right = spec.split("->")[0].split(",")
    sizes = dict.fromkeys("bijk", size)
    a, b = (jnp.ones([sizes[c] for c in axes], jnp.bfloat16) for axes in (left, right))
    found = jax.jit(lambda a, b: plain_product(spec, a, b))(a, b)
    np.testing.assert_array_equal(found, np.einsum(spec, np.asarray(a, "f"), np.asarray(b, "f")))


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
    model = build()
    params = dict(model.named_parameters())
    x = torch.randn(32, 64).bfloat16()
    wanted = model(x)
    wanted.backward()
    grads = {name: p.grad for name, p in params.items()}
    for p in params.values():
        p.grad = None
    samba.from_torch_model_(model)
    inputs = (samba.from_torch_tensor(x, name="x"),)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.0)
    config = {"output_folder": str(tmp_path)}
    pef = samba.session.compile(model, inputs, optimizer, config_dict=config)
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)
    loss = samba.to_torch(samba.session.run(inputs, outputs)[0])
    assert loss.item() == pytest.approx(wanted.item(), rel=2e-2)
    for name, p in model.named_parameters():
        grad = grads[name]
        assert grad is not None
        assert (p.sn_grad - grad).abs().max() <= 2e-2 * grad.abs().max(), name
