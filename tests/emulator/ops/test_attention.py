"""Scaled dot product attention against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from emulator.op_facts.scratch import causal_blocks
from emulator.ops.random import MissingSeed
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check, to_jax
from tests.emulator.ops.narrow import check_narrow

NAME = "aten.scaled_dot_product_attention.default"


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def heads(keys: int = 7, width: int = 5) -> list[torch.Tensor]:
    return [data(2, 4, 6, 8), data(2, 4, keys, 8, seed=1), data(2, 4, keys, width, seed=2)]


def boolean(*shape: int) -> torch.Tensor:
    return data(*shape, seed=5) > -0.5


def test_attention() -> None:
    for mask in (data(6, 7, seed=4), data(2, 1, 6, 7, seed=4), boolean(6, 7), boolean(2, 1, 6, 7)):
        check(NAME, *heads(), mask)
    check(NAME, *heads())
    check(NAME, *heads(), None, 0.0, True)
    check(NAME, *heads(), scale=0.5)
    for lead in ((), (3,)):
        check(NAME, data(*lead, 6, 8), data(*lead, 7, 8, seed=1), data(*lead, 7, 8, seed=2))
    queries, keys, values = data(2, 4, 6, 8), data(2, 2, 7, 8), data(2, 2, 7, 8, seed=1)
    check(NAME, queries, keys, values, enable_gqa=True)
    check(NAME, *(t.double() for t in heads()), None, 0.0, True)
    check_narrow(NAME, *heads(), None, 0.0, True)


def test_masked_row_gives_zeros() -> None:
    mask = boolean(6, 7)
    mask[2] = False
    for seen in (mask, torch.where(mask, 0.0, -float("inf"))):
        check(NAME, *heads(width=8), seen, frozen=(3,))


@cases("queries, keys", [(130, 130), (130, 70), (130, 300), (300, 300)], every=2)
def test_causal_in_blocks(queries: int, keys: int) -> None:
    """More queries than a block holds: no block computes what none of its queries sees."""
    assert len(causal_blocks(queries, keys)) > 1
    q, k, v = data(2, queries, 8), data(2, keys, 8, seed=1), data(2, keys, 5, seed=2)
    check(NAME, q, k, v, None, 0.0, True)
    check(NAME, *(t.double() for t in (q, k, v)), None, 0.0, True, scale=0.3)


def test_causal_in_blocks_of_narrow_types() -> None:
    check_narrow(NAME, *(data(2, 130, 8, seed=i) for i in range(3)), None, 0.0, True)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_blocks_give_what_the_whole_gives(rate: float) -> None:
    """As by a causal mask, in one piece: dropout of a block is that of its place in all scores."""
    q, k, v = (to_jax(data(2, 130, 8, seed=i)) for i in range(3))
    key = jnp.array([3, 0], jnp.uint32)
    lower = jax.jit(load_ops()[NAME].lower, static_argnums=(4, 5))
    mask = jnp.tril(jnp.ones((130, 130), bool))
    whole = np.asarray(lower(q, k, v, mask, rate, seed=key))
    blocks = np.asarray(lower(q, k, v, None, rate, True, seed=key))
    # Sums of up to 130 values near 3, some near 0 by cancellation.
    np.testing.assert_allclose(blocks, whole, rtol=2e-5, atol=1e-6)


@given(queries=st.integers(0, 2000), keys=st.integers(0, 2000))
def test_blocks_hold_every_query_once(queries: int, keys: int) -> None:
    blocks = causal_blocks(queries, keys)
    assert len(blocks) <= 4
    assert [i for begin, end, _ in blocks for i in range(begin, end)] == list(range(queries))
    assert all(seen == min(end, keys) for _, end, seen in blocks), "query i sees keys up to i"


def run(rate: float, seed: int = 1, *, array: bool = False, **kwargs: Any) -> jax.Array:
    """Attention with dropout; the rate may be handed over as an array."""
    with jax.enable_x64(True):
        p: Any = jnp.asarray(rate, jnp.float64) if array else rate
        q, k, v = (to_jax(t) for t in heads())
        key = jnp.array([seed, 0], jnp.uint32)
        return load_ops()[NAME].lower(q, k, v, None, p, seed=key, **kwargs)


def test_dropout_keeps_the_mean() -> None:
    """Averaged over many seeds, attention with dropout is attention without."""
    plain, count = np.asarray(run(0.0)), 400
    with jax.enable_x64(True):
        q, k, v = (to_jax(t) for t in heads())
        lower = load_ops()[NAME].lower
        keys = jnp.stack([jnp.arange(count), jnp.zeros(count)], 1).astype(jnp.uint32)
        many = jax.jit(jax.vmap(lambda key: lower(q, k, v, None, 0.2, seed=key)))(keys)
    error = np.asarray(many).mean(0) - plain
    spread = np.asarray(many).std(0)
    assert (np.abs(error) < 6 * spread / np.sqrt(count) + 1e-6).all()
    assert spread.max() > 0.1


def test_dropout_repeats_and_rate_may_be_an_array() -> None:
    same = [np.asarray(run(0.3)), np.asarray(run(0.3, array=True))]
    np.testing.assert_array_equal(*same)
    assert (np.asarray(run(0.3, seed=2)) != same[0]).any()
    np.testing.assert_allclose(np.asarray(run(0.0, array=True)), np.asarray(run(0.0)), rtol=1e-6)
    assert not np.asarray(run(1.0)).any()


def test_dropout_without_seed() -> None:
    with pytest.raises(MissingSeed, match="seed") as caught:
        load_ops()[NAME].lower(*(to_jax(t) for t in heads()), None, 0.1)
    assert caught.value.op == NAME
