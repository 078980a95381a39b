"""Arithmetic against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, generator=G)
Y = torch.randn(4, generator=G)
INTS = torch.arange(-4, 8).reshape(3, 4)
DIVISORS = torch.tensor([3, -2, 1, 7])
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.7, INF, -INF, NAN])
ROW, COLUMN = EDGES.clone(), EDGES.clone()[:, None]


def test_sums_and_products() -> None:
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Tensor"):
        check(f"aten.{name}", X, Y)
        check(f"aten.{name}", INTS, DIVISORS)
        check("aten.rsub.Scalar" if name == "rsub.Tensor" else f"aten.{name}", X, 1.7)
    for name in ("add", "sub", "rsub"):
        check(f"aten.{name}.Tensor", X, Y, alpha=-2.5)
        check(f"aten.{name}.Tensor", INTS, DIVISORS, alpha=3)
    # Truth values add and multiply as logic does.
    a, b = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    check("aten.add.Tensor", a, b)
    check("aten.mul.Tensor", a, b)
    check("aten.add.Tensor", a, 2)


def test_fused_operations() -> None:
    check("aten.addcmul.default", X, Y, X + 1, value=-0.5)
    check("aten.addcdiv.default", X, Y, X.abs() + 1, value=0.5)
    check("aten.addcmul.default", INTS, DIVISORS, INTS, value=2)
    for weight in (0.3, 0.7):
        check("aten.lerp.Scalar", X, Y.expand(3, 4).clone(), weight)
    check("aten.lerp.Tensor", X, X * 2, torch.tensor([-1.0, 0.4, 0.5, 2.0]))


def test_division() -> None:
    for name in ("remainder.Tensor", "fmod.Tensor"):
        check(f"aten.{name}", X, Y)
        check(f"aten.{name}", INTS, DIVISORS)
    for name in ("div.Tensor", "remainder.Tensor", "fmod.Tensor"):
        check(f"aten.{name}", COLUMN, ROW, grad=False)
    for mode in (None, "trunc", "floor"):
        check("aten.div.Tensor_mode", X * 5, Y, rounding_mode=mode)
        check("aten.div.Tensor_mode", INTS, DIVISORS, rounding_mode=mode)
        check("aten.div.Scalar_mode", X * 5, -0.3, rounding_mode=mode)
        check("aten.div.Tensor_mode", COLUMN, ROW, rounding_mode=mode, grad=False)
    check("aten.floor_divide.default", X * 5, Y, grad=False)
    check("aten.floor_divide.default", INTS, DIVISORS)
    check("aten.floor_divide.default", COLUMN, ROW, grad=False)
    # Whole quotients survive division by a reciprocal.
    b = torch.arange(1, 200, dtype=torch.float32)
    check("aten.div.Tensor_mode", b[:, None] * 7, b, rounding_mode="trunc", grad=False)
    check("aten.div.Tensor_mode", b * 3, 3.0, rounding_mode="trunc", grad=False)


def test_powers() -> None:
    for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 70.0):
        check("aten.pow.Tensor_Scalar", X.abs() + 0.5, exponent)
    check("aten.pow.Tensor_Scalar", X, 3)
    check("aten.pow.Tensor_Scalar", X, -3)
    check("aten.pow.Tensor_Scalar", torch.tensor([0.0, 1.0]), 2.5)
    base = torch.tensor([0.0, 0.0, 0.0, 0.5, 2.0, -2.0])
    check("aten.pow.Tensor_Tensor", base, torch.tensor([0.0, 2.0, -1.0, 1.5, -1.5, 3.0]))
    check("aten.pow.Scalar", 2, X)
    check("aten.pow.Scalar", 0.0, torch.tensor([0.0, 1.0]))
    check("aten.float_power.Tensor_Scalar", X.abs(), 2)


def test_powers_of_integers() -> None:
    check("aten.pow.Tensor_Scalar", INTS, 3)
    check("aten.pow.Tensor_Tensor", INTS, torch.tensor([0, 1, 3, 5]))
    ones, below = torch.tensor([1, -1, -1, 2, 5]), torch.tensor([-1, -2, -3, -1, -2])
    check("aten.pow.Tensor_Tensor", ones, below)
    check("aten.pow.Tensor_Scalar", torch.tensor([True, False]), 2)
    check("aten.pow.Tensor_Scalar", INTS, 0.5, grad=False)


def test_a_power_of_16_bits_whose_gradient_ends_on_the_way() -> None:
    base = torch.tensor([0.000244140625, -3.0, 1.5], dtype=torch.float16)
    exponent = torch.tensor([-0.499755859375, -1.0009765625, 2.5], dtype=torch.float16)
    check("aten.pow.Tensor_Tensor", base, exponent)


def test_of_one_number() -> None:
    for name in ("abs", "neg", "square"):
        check(f"aten.{name}.default", EDGES)
        check(f"aten.{name}.default", INTS)
    for dtype in (torch.float64, torch.int64, torch.bool, torch.bfloat16):
        check("aten._to_copy.default", X * 3, dtype=dtype)
    check("aten._to_copy.default", X.bfloat16(), dtype=torch.float32)


def test_half_types() -> None:
    for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Tensor"):
        for dtype in (torch.bfloat16, torch.float16):
            check_narrow(f"aten.{name}", X.abs() + 0.5, Y.abs() + 0.5, dtype=dtype)


SHAPES = st.sampled_from([(), (1,), (4,), (3, 1), (3, 4), (2, 3, 4), (0, 4), (2, 1, 1)])
DTYPES = st.sampled_from([torch.float64, torch.int32, torch.bool, torch.uint8])


@settings(max_examples=8)
@given(SHAPES, SHAPES, DTYPES)
def test_shapes_and_dtypes_mix(first: Any, second: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(first, generator=generator)
    b = torch.randint(0, 2, second, generator=generator).to(dtype)
    check("aten.add.Tensor", a, b)


ALIASES = [
    ("sub", "subtract", ("Tensor", "Scalar")),
    ("mul", "multiply", ("Tensor", "Scalar")),
    ("div", "divide", ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")),
    ("div", "true_divide", ("Tensor", "Scalar")),
    ("neg", "negative", ("default",)),
    ("abs", "absolute", ("default",)),
    ("clamp", "clip", ("default", "Tensor")),
    ("asin", "arcsin", ("default",)),
    ("atanh", "arctanh", ("default",)),
    ("atan2", "arctan2", ("default",)),
    ("trunc", "fix", ("default",)),
    ("eq", "eq", ("Scalar",)),
    ("gt", "greater", ("Tensor", "Scalar")),
    ("cat", "concat", ("default",)),
    ("lgamma", "special_gammaln", ("default",)),
    ("transpose", "swapaxes", ("int",)),
]


@pytest.mark.parametrize(("name", "alias", "overloads"), ALIASES)
def test_aliases_share_a_lowering(name: str, alias: str, overloads: tuple[str, ...]) -> None:
    ops = load_ops()
    for overload in overloads:
        first = f"aten.{name}.{overload}"
        if first in ops:
            other = f"aten.{alias}.{'default' if alias == 'swapaxes' else overload}"
            assert ops[first].lower is ops[other].lower
