"""torch's type promotion, and broadcasting whose gradient sums fast."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from emulator.dtypes import FROM_NUMPY
from emulator.ops import _promote, _reduction
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import TORCH_TO_DTYPE, cases, check, to_jax

DTYPES = sorted(TORCH_TO_DTYPE, key=str)
OPERAND = st.one_of(
    st.sampled_from([True, 3, 2.5]), st.tuples(st.sampled_from(DTYPES), st.integers(0, 1))
)


def operand(drawn: Any) -> Any:
    if isinstance(drawn, tuple):
        return torch.ones([1] * drawn[1], dtype=drawn[0])
    return drawn


@given(OPERAND, OPERAND)
def test_result_type_is_torchs(first: Any, second: Any) -> None:
    a, b = operand(first), operand(second)
    want = TORCH_TO_DTYPE[torch.result_type(a, b)]
    with jax.enable_x64(True):
        arrays = [to_jax(x) if isinstance(x, torch.Tensor) else x for x in (a, b)]
        assert FROM_NUMPY[_promote.result_type(*arrays)] == want


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_scalars_stay_exact_beside_half_tensors(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 101).to(dtype)
    want = getattr(torch.ops.aten, name).Tensor(x, 0.1)
    with jax.enable_x64(True):
        got = load_ops()[f"aten.{name}.Tensor"].lower(to_jax(x), 0.1)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(to_jax(want)))


@cases(
    ("small", "large"),
    [((), (2, 3)), ((1, 3), (4, 3)), ((3, 1), (2, 3, 4)), ((1,), (0, 2)), ((2, 1, 1), (2, 1, 5))],
)
def test_broadcast_gradient_sums(small: tuple[int, ...], large: tuple[int, ...]) -> None:
    check("aten.broadcast_to.default", torch.randn(small), large)


_LONG_ROW = 32768
"""Elements of a row over which plain reductions of XLA:CPU are slow."""


@pytest.mark.parametrize("rows", [2, 5])
def test_long_rows_are_folded_and_keep_nan(rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, rows, 3, _LONG_ROW)).astype(np.float32)
    x[0, 1, 0, :3] = np.nan
    for axes in ((1,), (0, 1)):
        np.testing.assert_allclose(
            jax.jit(lambda a, axes=axes: _reduction.reduce_sum(a, axes))(x),
            x.astype(np.float64).sum(axes),
            rtol=1e-6,
            atol=1e-5,
        )
        for ours, theirs in ((_reduction.reduce_max, np.max), (_reduction.reduce_min, np.min)):
            got = jax.jit(lambda a, ours=ours, axes=axes: ours(a, axes))(x)
            np.testing.assert_array_equal(got, theirs(x, axes))


def test_half_sums_of_long_rows_accumulate_in_float32() -> None:
    x = jnp.full((16, _LONG_ROW), 1.0078125, jnp.bfloat16)
    assert float(_reduction.reduce_sum(x, (0,))[0]) == 16.125


def test_added_bias_gets_its_gradient_over_a_long_row() -> None:
    check(
        "aten.add.Tensor",
        torch.randn(3, 1, _LONG_ROW),
        torch.randn(_LONG_ROW),
    )
