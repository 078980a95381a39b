"""Distributions of the random ops."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.registry import load_ops
from pef_schema.program import DType

SEED = np.array([3, 9], np.uint32)
N = 50_000
LIKE = jnp.zeros(N, jnp.float32)


def draw(name: str, *args: Any, **kwargs: Any) -> np.ndarray:
    spec = load_ops()[f"aten.{name}"]
    assert spec.random
    assert not spec.differentiable
    with jax.enable_x64(True):
        lower = jax.jit(lambda seed: spec.lower(*args, seed=seed, stream=5, **kwargs))
        return np.asarray(lower(SEED))


# name, arguments, mean, variance, dtype
MOMENTS: list[tuple[str, tuple[Any, ...], float, float, Any]] = [
    ("rand.default", ((N,),), 0.5, 1 / 12, np.float32),
    ("rand_like.default", (LIKE,), 0.5, 1 / 12, np.float32),
    ("randn.default", ((N,),), 0, 1, np.float32),
    ("randn_like.default", (LIKE,), 0, 1, np.float32),
    ("randint.default", (10, (N,)), 4.5, 8.25, np.int64),
    ("randint.low", (-3, 4, (N,)), 0, 4, np.int64),
    ("randint_like.default", (LIKE, 10), 4.5, 8.25, np.float32),
    ("randint_like.low_dtype", (LIKE, 5, 15), 9.5, 8.25, np.float32),
    ("bernoulli.p", (LIKE, 0.3), 0.3, 0.21, np.float32),
    ("bernoulli.default", (LIKE + 0.3,), 0.3, 0.21, np.float32),
    ("normal_functional.default", (LIKE, 2.0, 3.0), 2, 9, np.float32),
    ("normal.float_float", (2.0, 3.0, (N,)), 2, 9, np.float32),
    ("normal.Tensor_float", (LIKE + 2, 3.0), 2, 9, np.float32),
    ("normal.float_Tensor", (2.0, LIKE + 3), 2, 9, np.float32),
    ("normal.Tensor_Tensor", (LIKE + 2, LIKE + 3), 2, 9, np.float32),
    ("uniform.default", (LIKE, -1.0, 3.0), 1, 16 / 12, np.float32),
    ("exponential.default", (LIKE, 2.0), 0.5, 0.25, np.float32),
    ("geometric.default", (LIKE, 0.25), 4, 12, np.float32),
    ("poisson.default", (LIKE + 3.5,), 3.5, 3.5, np.float32),
    ("poisson.default", (LIKE + 40,), 40, 40, np.float32),
    ("binomial.default", (LIKE + 9, LIKE + 0.3), 2.7, 1.89, np.float32),
]


@pytest.mark.parametrize(("name", "args", "mean", "variance", "dtype"), MOMENTS)
def test_moments(
    name: str, args: tuple[Any, ...], mean: float, variance: float, dtype: Any
) -> None:
    x = draw(name, *args)
    assert x.dtype == dtype
    assert x.shape == (N,)
    assert abs(x.mean(dtype=np.float64) - mean) < 4 * math.sqrt(variance / N)
    assert abs(x.var(dtype=np.float64) / variance - 1) < 0.05


def test_quantiles() -> None:
    """Where moments do not exist or say little."""
    np.testing.assert_allclose(
        np.quantile(draw("cauchy.default", LIKE), [0.25, 0.5, 0.75]), [-1, 0, 1], atol=0.04
    )
    logs = np.log(draw("log_normal.default", LIKE, 1.0, 0.5))
    np.testing.assert_allclose([logs.mean(), logs.std()], [1, 0.5], atol=0.01)


def test_dtypes() -> None:
    assert draw("rand.default", (4,), dtype=DType.FLOAT64).dtype == np.float64
    assert draw("randint.default", 4, (4,), dtype=DType.INT32).dtype == np.int32
    assert draw("randn_like.default", LIKE.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(("low", "high"), [(0, 7), (-5, 2), (0, 2**40)])
def test_integers_stay_in_range(low: int, high: int) -> None:
    x = draw("randint.low", low, high, (N,))
    assert x.min() >= low
    assert x.max() < high
    assert abs((x.mean() - low) / (high - low) - 0.5) < 0.08


def test_permutations() -> None:
    p = draw("randperm.default", 1000)
    assert p.dtype == np.int64
    assert sorted(p) == list(range(1000))
    assert (p == np.arange(1000)).sum() < 10


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial(replacement: bool) -> None:
    weights = jnp.array([[0.0, 1.0, 3.0]] * 4000, jnp.float32)
    x = draw("multinomial.default", weights, 2, replacement)
    assert x.dtype == np.int64
    assert x.shape == (4000, 2)
    assert x.min() == 1
    assert abs((x[:, 0] == 2).mean() - 0.75) < 0.03
    if not replacement:
        assert (x[:, 0] != x[:, 1]).all()


def test_gamma_and_its_gradient() -> None:
    lower = load_ops()["aten._standard_gamma.default"].lower
    alpha = np.linspace(0.3, 8, 2000, dtype=np.float32)
    with jax.enable_x64(True):
        drawn, back = jax.vjp(lambda a: lower(a, seed=SEED, stream=5), jnp.asarray(alpha))
        (slope,) = back(jnp.ones_like(drawn))
    assert drawn.dtype == np.float32
    assert abs(np.mean((np.asarray(drawn) - alpha) / np.sqrt(alpha))) < 0.1
    want = torch._standard_gamma_grad(torch.tensor(alpha), torch.tensor(np.asarray(drawn)))  # pyright: ignore[reportPrivateImportUsage]  # torch's own tests use it
    # torch's own series is good to three digits.
    np.testing.assert_allclose(np.asarray(slope), want.numpy(), rtol=5e-3, atol=1e-5)


def test_binomials_that_are_none_end_as_in_torch() -> None:
    """The sampler's loop does not end at a probability of -0.0."""
    nan = float("nan")
    count = jnp.asarray([2.0, 5.0, -1.0, 5.0, 5.0, nan])
    prob = jnp.asarray([-0.0, -0.5, 0.5, 2.0, nan, 0.5])
    lower = load_ops()["aten.binomial.default"].lower
    with jax.enable_x64(True):
        drawn = jax.jit(lambda n, p: lower(n, p, seed=jnp.zeros(2, "uint32"), stream=1))(
            count, prob
        )
    np.testing.assert_array_equal(np.asarray(drawn), [0, 0, 0, 5, nan, nan])
