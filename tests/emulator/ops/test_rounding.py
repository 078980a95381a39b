"""Rounding to bfloat16: bit for bit torch's, or unbiased."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

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
