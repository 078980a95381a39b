"""A weight is overwritten after its last reader: bit for bit the same, and without a copy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulator.lowering.write_order import after
from emulator.plans.executable_cache import xla_options


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("other", ["bfloat16", "float32", "float64"])
def test_all_bits_stay(dtype: str, other: str) -> None:
    with jax.enable_x64(True):
        kind = jnp.dtype(dtype)
        word = np.dtype(f"uint{8 * kind.itemsize}")
        bits = np.random.default_rng(0).integers(0, np.iinfo(word).max, 200, dtype=word)
        array = jax.lax.bitcast_convert_type(jnp.asarray(bits), kind)
        odd = [jnp.asarray(v, other) for v in (-jnp.inf, jnp.nan, [-1.5, 2.0], np.zeros((0, 3)))]
        got = jax.jit(after)(array, odd)
        assert got.dtype == kind
        np.testing.assert_array_equal(np.asarray(jax.lax.bitcast_convert_type(got, word)), bits)


def _update(ordered: bool) -> str:
    """A layer's input gradient and its update, with the weight donated."""

    def step(w: jax.Array, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        dx = g @ w
        old = after(w, [dx]) if ordered else w
        return old - 0.1 * (g.T @ x), dx

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 32), (16, 32), (16, 64))]
    lowered = jax.jit(step, donate_argnums=0).lower(*shapes)
    text = lowered.compile(compiler_options=xla_options(jax.devices("cpu")[0])).as_text()
    assert text is not None
    return text


def test_xla_needs_no_copy_of_the_weight() -> None:
    copy = re.compile(r"= f32\[64,32\]\S* copy\(%w")
    assert copy.search(_update(ordered=False)), "if XLA learns this itself, the order can go"
    assert not copy.search(_update(ordered=True))
