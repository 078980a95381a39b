"""The generator, dropout and samples of distributions: form, independence, repetition, gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.random import (
    TooManyElements,
    mix,
    native_dropout,
    next_seed,
    normal,
    uniform,
    uniform_bits,
)
from emulator.ops.registry import load_ops
from pef_schema.program import DType

SEED = np.array([7, 0], np.uint32)
N = 200_000


@functools.cache
def _bits(stream: int, n: int) -> Callable[[Any], jax.Array]:
    return jax.jit(lambda s: uniform_bits(s, stream, (n,)))


def bits(seed: Any = SEED, stream: int = 0, n: int = N) -> np.ndarray:
    return np.asarray(_bits(stream, n)(seed))


def chi_square(counts: np.ndarray) -> float:
    """How far counts are from equal, in standard deviations of the statistic."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_every_byte_is_uniform(shift: int) -> None:
    assert abs(chi_square(np.bincount((bits() >> shift) & 255, minlength=256))) < 4


def test_every_bit_is_fair_and_neighbours_are_independent() -> None:
    flags = ((bits()[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64)
    assert np.abs(flags.mean(0) - 0.5).max() < 4.5 / (2 * math.sqrt(N))
    u = bits() / 2.0**32 - 0.5
    for lag in (1, 2, 3, 28, 512):
        assert abs(np.mean(u[:-lag] * u[lag:]) * 12) * math.sqrt(N) < 4


def test_pairs_fill_the_square() -> None:
    cells = bits() >> 28
    assert abs(chi_square(np.bincount(cells[::2] * 16 + cells[1::2], minlength=256))) < 4


@pytest.mark.parametrize(
    ("seed", "stream"),
    [([7, 1], 0), ([8, 0], 0), ([7, 0], 1), ([0, 7], 0), ([7, 2**32 - 1], 0), ([7, 0], 12345)],
)
def test_other_seeds_steps_and_streams_are_independent(seed: list[int], stream: int) -> None:
    a, b = bits() / 2.0**32, bits(np.array(seed, np.uint32), stream) / 2.0**32
    assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(N) < 4
    cells = (a * 16).astype(int) * 16 + (b * 16).astype(int)
    assert abs(chi_square(np.bincount(cells, minlength=256))) < 4


def test_consecutive_steps_do_not_share_numbers() -> None:
    """For one element, the sequence over steps and over streams is as random as over elements."""
    steps = np.stack([np.full(4096, 7), np.arange(4096)], 1).astype(np.uint32)
    over_steps = np.asarray(jax.vmap(lambda s: uniform_bits(s, 3, (1,))[0])(steps))
    assert abs(chi_square(np.bincount(over_steps >> 27, minlength=32))) < 4
    draw = jax.jit(lambda: jnp.stack([uniform_bits(SEED, s, (1,))[0] for s in range(16)]))
    over_streams = np.asarray(draw())
    assert np.unique(over_streams >> 16).size == 16


def test_same_seed_and_stream_repeat_whatever_the_shape() -> None:
    np.testing.assert_array_equal(bits(), bits())
    square = np.asarray(jax.jit(lambda s: uniform_bits(s, 0, (4, 5)))(SEED))
    np.testing.assert_array_equal(square.reshape(-1), bits(n=20))


def test_mixer_is_a_bijection_of_known_values() -> None:
    """Values of the reference C code of lowbias32 with the improved constants."""

    def reference(x: int) -> int:
        x ^= x >> 16
        x = x * 0x21F0AAAD % 2**32
        x ^= x >> 15
        x = x * 0xD35A2D97 % 2**32
        return x ^ (x >> 15)

    words = [0, 1, 2, 0xDEADBEEF, 2**32 - 1]
    got = mix(jnp.array(words, jnp.uint32))
    assert [int(g) for g in got] == [reference(w) for w in words]
    assert np.unique(mix(jnp.arange(65536, dtype=jnp.uint32))).size == 65536


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.float16])
def test_uniform_moments(dtype: Any) -> None:
    with jax.enable_x64(True):
        u = np.asarray(jax.jit(lambda seed: uniform(seed, 1, (N,), dtype))(SEED))
    assert u.dtype == np.dtype(dtype)
    wide = u.astype(np.float64)
    assert wide.min() >= 0
    assert wide.max() < 1
    bin_width = (
        2.0**-8 if dtype is jnp.bfloat16 else 0.0
    )  # the mean of a coarse grid is half a bin low
    assert abs(wide.mean() + bin_width / 2 - 0.5) < 4 / math.sqrt(12 * N) + 2.0**-11
    assert abs(wide.var() - 1 / 12) < 1e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_moments(dtype: Any) -> None:
    with jax.enable_x64(True):
        z = np.asarray(jax.jit(lambda seed: normal(seed, 2, (N,), dtype))(SEED))
        z = z.astype(np.float64)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 4 / math.sqrt(N)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / N)
    assert abs((z**3).mean()) < 4 * math.sqrt(15 / N)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / N)
    inside = [np.mean(np.abs(z) < k) for k in (1, 2, 3)]
    np.testing.assert_allclose(inside, [0.6827, 0.9545, 0.9973], atol=4e-3)


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(TooManyElements, match="at most 4294967296 can be numbered") as e:
        uniform_bits(SEED, 0, (2**20, 2**13))
    assert e.value.shape == (2**20, 2**13)


def test_next_seed_counts_the_step() -> None:
    seed = jnp.array([5, 2**32 - 1], jnp.uint32)
    assert next_seed(seed).tolist() == [5, 0]
    assert next_seed(seed).dtype == np.uint32
    assert load_ops()["samba.next_seed"].lower is next_seed


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
def test_dropout(dtype: Any) -> None:
    """Kept elements are scaled; the gradient is the mask times the scale; rates are data."""
    with jax.enable_x64(True):
        x = jnp.linspace(1, 2, N).astype(dtype)

        @jax.jit
        def both(x: Any, p: Any) -> Any:
            (y, keep), pull = jax.vjp(lambda x: native_dropout(x, p, True, seed=SEED, stream=4), x)
            return y, keep, pull((jnp.ones_like(y), np.zeros(keep.shape, jax.dtypes.float0)))[0]

        wider = np.float32 if dtype is not np.float64 else np.float64
        for rate in (0.1, 0.5, 0.9):
            y, keep, grad = both(x, np.float64(rate))
            assert y.dtype == x.dtype
            assert keep.dtype == np.bool_
            assert abs(float(keep.mean()) - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / N)
            scale = np.asarray(1 / (1 - rate), wider)
            want = np.where(keep, np.asarray(x).astype(wider) * scale, 0).astype(x.dtype)
            np.testing.assert_array_equal(np.asarray(y), want, f"rate {rate}")
            want = np.where(keep, np.ones(N, wider) * scale, 0).astype(x.dtype)
            np.testing.assert_array_equal(np.asarray(grad), want, f"rate {rate}")


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_at_the_ends(rate: float) -> None:
    x = jnp.array([1.0, -0.5, np.inf, 3e38])
    for p in (rate, jnp.float32(rate)):
        y, keep = jax.jit(lambda p: native_dropout(x, p, True, seed=SEED, stream=0))(p)
        np.testing.assert_array_equal(y, x if rate == 0 else jnp.zeros(4))
        assert keep.all() == (rate == 0)


def test_dropout_off_returns_the_input() -> None:
    x = jnp.ones(3)
    y, keep = native_dropout(x, 0.5, False, seed=SEED, stream=0)
    assert y is x
    assert keep.all()
    assert load_ops()["aten.dropout.default"].lower(x, 0.5, False, seed=SEED, stream=0) is x


def test_dropout_of_one_node_differs_from_step_to_step() -> None:
    mask = jax.jit(lambda s: native_dropout(jnp.ones(1000), 0.5, True, seed=s, stream=0)[1])
    masks = [np.asarray(mask(s)) for s in (SEED, next_seed(jnp.asarray(SEED)))]
    assert 400 < (masks[0] != masks[1]).sum() < 600


SAMPLING_SEED = np.array([3, 9], np.uint32)
SAMPLES = 50_000
LIKE = jnp.zeros(SAMPLES, jnp.float32)


def lowering(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], jax.Array]:
    spec = load_ops()[f"aten.{name}"]
    assert spec.random
    assert not spec.differentiable
    return lambda seed: spec.lower(*args, seed=seed, stream=5, **kwargs)


def draw(name: str, *args: Any, **kwargs: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lowering(name, *args, **kwargs))(SAMPLING_SEED))


# name, arguments, mean, variance, dtype
MOMENTS: list[tuple[str, tuple[Any, ...], float, float, Any]] = [
    ("rand.default", ((SAMPLES,),), 0.5, 1 / 12, np.float32),
    ("rand_like.default", (LIKE,), 0.5, 1 / 12, np.float32),
    ("randn.default", ((SAMPLES,),), 0, 1, np.float32),
    ("randn_like.default", (LIKE,), 0, 1, np.float32),
    ("randint.default", (10, (SAMPLES,)), 4.5, 8.25, np.int64),
    ("randint.low", (-3, 4, (SAMPLES,)), 0, 4, np.int64),
    ("randint_like.default", (LIKE, 10), 4.5, 8.25, np.float32),
    ("randint_like.low_dtype", (LIKE, 5, 15), 9.5, 8.25, np.float32),
    ("bernoulli.p", (LIKE, 0.3), 0.3, 0.21, np.float32),
    ("bernoulli.default", (LIKE + 0.3,), 0.3, 0.21, np.float32),
    ("normal_functional.default", (LIKE, 2.0, 3.0), 2, 9, np.float32),
    ("normal.float_float", (2.0, 3.0, (SAMPLES,)), 2, 9, np.float32),
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


def test_moments() -> None:
    """All are drawn in one program."""
    lowerings = [lowering(name, *args) for name, args, *_ in MOMENTS]
    with jax.enable_x64(True):
        drawn = jax.jit(lambda seed: [lower(seed) for lower in lowerings])(SAMPLING_SEED)
    drawn = list(map(np.asarray, drawn))
    for x, (name, _, mean, variance, dtype) in zip(drawn, MOMENTS, strict=True):
        assert x.dtype == dtype, name
        assert x.shape == (SAMPLES,), name
        assert abs(x.mean(dtype=np.float64) - mean) < 4 * math.sqrt(variance / SAMPLES), name
        assert abs(x.var(dtype=np.float64) / variance - 1) < 0.05, name


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
    x = draw("randint.low", low, high, (SAMPLES,))
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

    @jax.jit
    def both(alpha: Any) -> Any:
        drawn, back = jax.vjp(lambda a: lower(a, seed=SAMPLING_SEED, stream=5), alpha)
        return drawn, back(jnp.ones_like(drawn))[0]

    with jax.enable_x64(True):
        drawn, slope = both(alpha)
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
