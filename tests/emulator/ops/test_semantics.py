"""What XLA does otherwise than torch: every difference as a property, element by element."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import TORCH_TO_DTYPE, _map, to_jax, to_numpy64, torch_op

SIZE = 8
"""One shape a test, so that each op is compiled once."""


@functools.cache
def compiled(name: str, rest: tuple[Any, ...]) -> Any:
    lower = load_ops()[name].lower
    fixed = tuple(_map(r, to_jax) for r in rest)
    return jax.jit(lambda *arrays: lower(*arrays, *fixed))


def same(name: str, *tensors: torch.Tensor, rest: tuple[Any, ...] = ()) -> None:
    """Bits equal, the sign of zero included, and NaN where torch has it."""
    want = torch_op(name)(*tensors, *rest)
    with jax.enable_x64(True):
        got = compiled(name, rest)(*map(to_jax, tensors))
        for g, w in zip(*(t if isinstance(t, tuple) else (t,) for t in (got, want)), strict=True):
            a, b = to_numpy64(g), to_numpy64(w)
            np.testing.assert_array_equal(a, b, err_msg=name)
            if b.dtype.kind == "f":
                number = ~np.isnan(b)
                signs = np.signbit(a)[number], np.signbit(b)[number]
                np.testing.assert_array_equal(*signs, err_msg=f"{name}, sign bits")


def integers(low: int, high: int) -> st.SearchStrategy[torch.Tensor]:
    return st.lists(st.integers(low, high), min_size=SIZE, max_size=SIZE).map(torch.tensor)


WIDE = integers(-(2**62), 2**62)
EDGES = (0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e30, 3.0, -3.0)
# Numbers nearer to zero than the least normal one count as zeros, which a test of its own shows.
FLOATS = st.lists(
    st.sampled_from(EDGES) | st.floats(-100, 100, width=32, allow_subnormal=False),
    min_size=SIZE,
    max_size=SIZE,
).map(torch.tensor)
MODES: tuple[Any, ...] = ("floor", "trunc")


@settings(max_examples=30)
@given(a=WIDE, b=integers(-7, 7))
def test_integers_divide_like_torchs(a: torch.Tensor, b: torch.Tensor) -> None:
    b = torch.where(b == 0, 3, b)
    for name in ("remainder.Tensor", "fmod.Tensor", "floor_divide.default"):
        same(f"aten.{name}", a, b)
    lower = load_ops()["aten.div.Tensor_mode"].lower
    with jax.enable_x64(True):
        for mode in MODES:
            got = np.asarray(lower(to_jax(a), to_jax(b), rounding_mode=mode))
            np.testing.assert_array_equal(got, torch.div(a, b, rounding_mode=mode).numpy())


@settings(max_examples=30)
@given(a=FLOATS, b=FLOATS)
def test_floats_divide_and_compare_like_torchs(a: torch.Tensor, b: torch.Tensor) -> None:
    b = torch.where(b.abs() < 0.25, 0.75, b)
    a = torch.where(
        a.abs() > 1e6, a.sign() * torch.inf, a
    )  # the quotient's rounding is another test
    for name in ("remainder.Tensor", "fmod.Tensor", "maximum.default", "minimum.default"):
        same(f"aten.{name}", a, b)


@settings(max_examples=30)
@given(a=FLOATS)
def test_rounding_signs_and_order(a: torch.Tensor) -> None:
    for name in ("round", "sign", "trunc", "floor", "ceil", "neg", "abs", "relu", "signbit"):
        same(f"aten.{name}.default", a)
    same("aten.cummax.default", a, rest=(0,))
    same("aten.argmax.default", a, rest=(0,))
    same("aten.argmin.default", a, rest=(0,))
    # Of 0.0 and -0.0 torch keeps the one that its vector order meets first.
    same("aten.amax.default", a + 0.0, rest=((0,),))
    same("aten.max.dim", a + 0.0, rest=(0,))


@settings(max_examples=30)
@given(a=WIDE, b=WIDE)
def test_integers_beyond_32_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "bitwise_xor.Tensor"):
        same(f"aten.{name}", a, b)
    same("aten.sum.default", a)
    same("aten.cumsum.default", a, rest=(0,))
    same("aten.sort.default", a)
    same("aten.lt.Tensor", a, b)


@settings(max_examples=30)
@given(index=integers(-SIZE, SIZE - 1))
def test_negative_indices_count_from_the_end(index: torch.Tensor) -> None:
    x = torch.arange(float(SIZE))
    same("aten.take.default", x, index)
    lower = load_ops()["aten.index.Tensor"].lower
    with jax.enable_x64(True):
        got = np.asarray(lower(to_jax(x), (to_jax(index),)))
    np.testing.assert_array_equal(got, x[index].numpy())


def test_indices_out_of_range_do_not_reach_other_memory() -> None:
    """Torch raises on the CPU, a running program cannot: the result is clamped or NaN, no more."""
    x = torch.arange(4.0)
    with pytest.raises((IndexError, RuntimeError)):
        torch.take(x, torch.tensor([9]))
    lower = load_ops()["aten.take.default"].lower
    with jax.enable_x64(True):
        got = float(np.asarray(lower(to_jax(x), to_jax(torch.tensor([9, -9]))))[0])
    assert math.isnan(got) or got in x.tolist()


EDGES_OF_CASTS = (
    *(math.nan, math.inf, -math.inf, -473.6, 300.7, 255.9, -1.5, -0.5, 128.5, -129.0, 40000.7),
    *(70000.0, -70000.0, 2.0**31, -(2.0**31), -(2.0**31) - 1000, 2.0**32 + 512, 2.0**40 + 7e6),
    *(2.0**63, -(2.0**63), 2.0**63 - 2.0**40, 1e30, -1e30, 3e9 + 77, -3e9 - 77),
)


@pytest.mark.parametrize("to", ["uint8", "int8", "int16", "int32", "int64", "bool"])
def test_floats_out_of_range_become_integers_as_torchs_do(to: str) -> None:
    lower = jax.jit(load_ops()["aten.to.dtype"].lower, static_argnums=1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.tensor(EDGES_OF_CASTS, dtype=torch.float64).to(dtype)
        want = x.to(getattr(torch, to))
        with jax.enable_x64(True):
            got = lower(to_jax(x), TORCH_TO_DTYPE[want.dtype])
        np.testing.assert_array_equal(np.asarray(got), want.numpy(), err_msg=str(dtype))
