"""Rounding to bfloat16 on the bits, against the conversion that it stands for."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulator.kernels.narrowing import narrow


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
