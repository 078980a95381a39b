"""Rounding to bfloat16: bit for bit torch's, or unbiased."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.kernels.precision import narrow
from emulator.ops.inserted import UnknownCast, cast_bf16
from samba.tracer.reference import round_to_bfloat16

SEED = np.array([3, 1], np.uint32)
ODD = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-40,
        3.3895314e38,
        3.4028235e38,
        np.inf,
        -np.inf,
        1 + 2**-8,
        1 + 3 * 2**-8,
    ],
    np.float32,
)


def samples() -> np.ndarray:
    """Every exponent, and what is special."""
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    return np.concatenate([values[np.isfinite(values)], ODD])


def rounded(x: np.ndarray, mode: str, **more) -> np.ndarray:
    return np.asarray(jax.jit(lambda a: cast_bf16(a, mode, **more))(x))


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def test_nearest_is_torchs_cast_to_the_bit():
    x = samples()
    want = torch.from_numpy(x).bfloat16().float().numpy()
    assert (bits(rounded(x, "nearest_even")) == bits(want)).all()
    assert (
        bits(round_to_bfloat16(torch.from_numpy(x), "nearest_even").numpy()) == bits(want)
    ).all()


def test_truncation_cuts_the_lower_bits():
    x = samples()
    want = (bits(x) & np.uint32(0xFFFF0000)).view(np.float32)
    assert (bits(rounded(x, "truncation")) == bits(want)).all()
    assert (bits(round_to_bfloat16(torch.from_numpy(x), "truncation").numpy()) == bits(want)).all()
    finite = np.isfinite(x)
    assert (np.abs(want[finite]) <= np.abs(x[finite])).all()


@pytest.mark.parametrize("mode", ["nearest_even", "truncation", "stochastic"])
def test_nan_stays_nan_and_bfloat16_stays_as_it_is(mode):
    low_payload = np.array([0x7F800001, 0xFF80FFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(rounded(low_payload, mode, seed=SEED)).all()
    x = torch.randn(1000).bfloat16().float().numpy()
    assert (bits(rounded(x, mode, seed=SEED)) == bits(x)).all()
    assert (
        rounded(np.array([np.inf, -np.inf], np.float32), mode, seed=SEED) == [np.inf, -np.inf]
    ).all()


def test_stochastic_rounding_is_unbiased_between_two_neighbours():
    n = 100_000
    for part in (0.1, 0.5, 0.9):
        for sign in (1, -1):
            x = np.full(n, sign * (1 + part * 2**-7), np.float32)
            got = rounded(x, "stochastic", seed=SEED)
            assert set(np.abs(got).tolist()) == {1.0, 1 + 2**-7}
            # Four standard deviations of the mean of n draws between two neighbours.
            bound = 4 * 2**-7 * np.sqrt(part * (1 - part) / n)
            assert abs(got.mean(dtype=np.float64) - x[0]) < bound
            assert abs(rounded(x, "truncation").mean(dtype=np.float64) - x[0]) > bound  # it bites


def test_stochastic_rounding_follows_seed_and_stream():
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    first = rounded(x, "stochastic", seed=SEED, stream=4)
    assert (first == rounded(x, "stochastic", seed=SEED, stream=4)).all()
    for other in ({"stream": 5}, {"seed": SEED + 1}):
        assert (first != rounded(x, "stochastic", **{"seed": SEED, "stream": 4, **other})).any()


@pytest.mark.parametrize("mode", ["nearest_even", "truncation", "stochastic"])
def test_the_gradient_is_rounded_in_the_same_way(mode):
    x = np.random.default_rng(2).standard_normal((2, 5000)).astype(np.float32)
    _, vjp = jax.vjp(lambda a: cast_bf16(a, mode, seed=jnp.asarray(SEED), stream=2), x[0])
    (got,) = vjp(jnp.asarray(x[1]))
    leaf = torch.from_numpy(x[0]).requires_grad_()
    (want,) = torch.autograd.grad(round_to_bfloat16(leaf, mode), leaf, torch.from_numpy(x[1]))
    if mode == "stochastic":
        down = round_to_bfloat16(torch.from_numpy(x[1]), "truncation").numpy()
        up = (bits(down) + np.uint32(0x10000)).view(np.float32)
        assert ((np.asarray(got) == down) | (np.asarray(got) == up)).all()
        assert 0.4 < (np.asarray(got) == up).mean() < 0.6
    else:
        assert (np.asarray(got) == want.numpy()).all()


def test_an_unknown_mode_says_so():
    with pytest.raises(UnknownCast, match="'nearest_even'"):
        cast_bf16(jnp.ones(2), "upward")


def _hard() -> np.ndarray:
    """Every upper half with the lower halves around a tie, and random bits."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.concatenate([(upper[:, None] | lower).reshape(-1), drawn]).view(np.float32)


def test_all_bits_are_those_of_the_conversion() -> None:
    x = _hard()
    got = np.asarray(jax.jit(lambda x: narrow(x, jnp.bfloat16))(x))
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = x.astype(jnp.bfloat16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32, jnp.float64])
def test_other_types_are_converted(dtype: Any) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray([1.0, 1 / 3, 70000.0, jnp.nan], jnp.float32)
        np.testing.assert_array_equal(narrow(x, dtype), x.astype(dtype))


def test_the_gradient_is_a_conversion_back() -> None:
    x = jnp.asarray([0.1, jnp.inf, jnp.nan], jnp.float32)
    y, pull = jax.vjp(lambda x: narrow(x, jnp.bfloat16), x)
    g = jnp.asarray([0.3, -2.0, 1.0], jnp.bfloat16)
    (back,) = pull(g)
    assert y.dtype == jnp.bfloat16
    assert back.dtype == jnp.float32
    np.testing.assert_array_equal(back, g.astype(jnp.float32))


def test_other_platforms_convert() -> None:
    run: Any = jax.jit(lambda x: narrow(x, jnp.bfloat16))
    traced = run.trace(jax.ShapeDtypeStruct((8,), jnp.float32))
    texts = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda")}
    rounds = re.compile(r"stablehlo.convert.*f32.*bf16")
    assert rounds.search(texts["cuda"])
    assert not rounds.search(texts["cpu"])
