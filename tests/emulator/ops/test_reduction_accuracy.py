"""Sums hold as many digits as torch's; extremes and sums hold for every shape, NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops import _reduction as reduction
from emulator.plans.xla_options import xla_options

AS_TORCH = 2.0
"""How many times torch's own largest error ours may have."""
LAST_DIGIT = 2.0**-23
"""What torch's error counts as at least: of a single sum it may be nothing by chance."""

Function = Callable[[jax.Array], jax.Array]

SHAPES = [
    ((4096, 96), (0,)),
    ((4099, 33), (0,)),
    ((64, 6000), (1,)),
    ((700, 100), (1,)),
    ((1 << 20,), (0,)),
    ((1_000_003,), (0,)),
    ((8, 24, 40, 40), (0, 2, 3)),
    ((8, 24, 40, 40), (0, 1, 2, 3)),
    ((8, 200, 96), (1,)),
]


def _compiled(fn: Function, x: np.ndarray) -> np.ndarray:
    """What a plan's executable would give."""
    options = xla_options(jax.devices("cpu")[0])
    given = jnp.asarray(x)
    return np.asarray(jax.jit(fn).lower(given).compile(compiler_options=options)(given))


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Positive numbers, whose partial sums lose the most digits."""
    return np.random.default_rng(0).random(shape, dtype=np.float32) + np.float32(0.5)


def _error(got: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> float:
    exact = x.astype(np.float64).sum(axes)
    return float(np.max(np.abs(got - exact) / exact))


def _torch_error(x: np.ndarray, axes: tuple[int, ...]) -> float:
    return _error(torch.from_numpy(x).sum(axes).numpy(), x, axes)


def _within(error: float, of_torch: float) -> bool:
    return error <= AS_TORCH * max(of_torch, LAST_DIGIT)


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_sums_hold_torchs_digits(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = _numbers(shape)
    error = _error(_compiled(lambda a: reduction.reduce_sum(a, axes), x), x, axes)
    assert _within(error, _torch_error(x, axes))


def test_one_accumulator_would_be_noticed() -> None:
    x = _numbers((1 << 20, 4))

    def one_by_one(a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, a.shape[0], lambda i, total: total + a[i], jnp.zeros(4))

    assert not _within(_error(_compiled(one_by_one, x), x, (0,)), _torch_error(x, (0,)))


def test_no_reduction_becomes_a_window() -> None:
    options = xla_options(jax.devices("cpu")[0])
    x = jnp.ones((512, 512))

    def both(a: jax.Array) -> tuple[jax.Array, ...]:
        rows = reduction.reduce_sum(a, (1,)), reduction.reduce_max(a, (1,))
        return *rows, reduction.reduce_sum(a, (0,)), reduction.reduce_max(a, (0,))

    lowered = jax.jit(both).lower(x)
    assert "reduce-window" not in str(lowered.compile(compiler_options=options).as_text())
    assert "reduce-window" in str(lowered.compile().as_text())  # what the option is for


@st.composite
def _cases(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    sizes = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 31, 33, 50, 130])
    shape = draw(st.lists(sizes, min_size=1, max_size=3))
    axes = draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.integers(-8, 9, shape).astype(np.float32)
    for value in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, -0.0]), max_size=2)):
        if x.size:
            x.flat[draw(st.integers(0, x.size - 1))] = value
    return x, tuple(sorted(axes))


@settings(max_examples=settings().max_examples // 4)
@given(_cases())
def test_some_shapes(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    _matches_torch(case)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_cases())
def test_many_shapes(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    _matches_torch(case)


def _matches_torch(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    # Whole numbers: every order of adding gives the same.
    x, axes = case
    t = torch.from_numpy(x)
    functions, wanted = [reduction.reduce_sum], [t.sum(axes)]
    if all(x.shape[a] for a in axes):
        functions += [reduction.reduce_max, reduction.reduce_min]
        wanted += [t.amax(axes), t.amin(axes)]
    options = xla_options(jax.devices("cpu")[0])
    together = jax.jit(lambda a: [f(a, axes) for f in functions], compiler_options=options)
    for ours, theirs in zip(together(x), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_large_ones_keep_nan_and_infinity(axes: tuple[int, ...]) -> None:
    x = _numbers((300, 200))
    x[7, 11], x[8, 12], x[9, 13] = np.nan, np.inf, -np.inf
    t = torch.from_numpy(x)
    for ours, theirs in (
        (reduction.reduce_max, t.amax(axes)),
        (reduction.reduce_min, t.amin(axes)),
    ):
        got = _compiled(lambda a, fn=ours: fn(a, axes), x)
        np.testing.assert_array_equal(got, theirs.numpy())
    total = _compiled(lambda a: reduction.reduce_sum(a, axes), x)
    np.testing.assert_allclose(total, t.sum(axes).numpy(), rtol=1e-6)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_the_gradient_of_a_sum_is_spread(axes: tuple[int, ...]) -> None:
    x = jnp.zeros((3, 40, 200))
    y, back = jax.vjp(lambda a: reduction.reduce_sum(a, axes), x)
    g = jnp.arange(float(y.size)).reshape(y.shape)
    kept = reduction.kept_shape(x.shape, axes)
    np.testing.assert_array_equal(back(g)[0], jnp.broadcast_to(g.reshape(kept), x.shape))
