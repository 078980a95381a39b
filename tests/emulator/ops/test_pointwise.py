"""Arithmetic against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, generator=G)
Y = torch.randn(4, generator=G)
INTS = torch.arange(-4, 8).reshape(3, 4)
DIVISORS = torch.tensor([3, -2, 1, 7])
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.7, INF, -INF, NAN])
ROW, COLUMN = EDGES.clone(), EDGES.clone()[:, None]

BINARY = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Tensor"]
DIVIDING = ["remainder.Tensor", "fmod.Tensor"]


@cases("name", BINARY + DIVIDING)
def test_binary(name: str) -> None:
    check(f"aten.{name}", X, Y)
    check(f"aten.{name}", INTS, DIVISORS)


@cases("name", BINARY)
def test_binary_with_a_number(name: str) -> None:
    check(f"aten.{name}", X, 1.7) if name != "rsub.Tensor" else check("aten.rsub.Scalar", X, 1.7)


@cases("name", ["add", "sub", "rsub"])
def test_alpha(name: str) -> None:
    check(f"aten.{name}.Tensor", X, Y, alpha=-2.5)
    check(f"aten.{name}.Tensor", INTS, DIVISORS, alpha=3)


@cases("name", ["div.Tensor", "remainder.Tensor", "fmod.Tensor"])
def test_edges(name: str) -> None:
    check(f"aten.{name}", COLUMN, ROW, grad=False)


@cases("mode", [None, "trunc", "floor"])
def test_rounded_division(mode: str | None) -> None:
    check("aten.div.Tensor_mode", X * 5, Y, rounding_mode=mode)
    check("aten.div.Tensor_mode", INTS, DIVISORS, rounding_mode=mode)
    check("aten.div.Scalar_mode", X * 5, -0.3, rounding_mode=mode)
    check("aten.div.Tensor_mode", COLUMN, ROW, rounding_mode=mode, grad=False)


def test_floor_divide() -> None:
    check("aten.floor_divide.default", X * 5, Y, grad=False)
    check("aten.floor_divide.default", INTS, DIVISORS)
    check("aten.floor_divide.default", COLUMN, ROW, grad=False)


def test_whole_quotients_survive_division_by_a_reciprocal() -> None:
    b = torch.arange(1, 200, dtype=torch.float32)
    check("aten.div.Tensor_mode", b[:, None] * 7, b, rounding_mode="trunc", grad=False)
    check("aten.div.Tensor_mode", b * 3, 3.0, rounding_mode="trunc", grad=False)


def test_booleans_add_and_multiply_as_logic() -> None:
    a, b = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    check("aten.add.Tensor", a, b)
    check("aten.mul.Tensor", a, b)
    check("aten.add.Tensor", a, 2)


@cases("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 70.0])
def test_power_with_a_fixed_exponent(exponent: float) -> None:
    check("aten.pow.Tensor_Scalar", X.abs() + 0.5, exponent)


def test_power_of_negative_bases() -> None:
    check("aten.pow.Tensor_Scalar", X, 3)
    check("aten.pow.Tensor_Scalar", X, -3)
    check("aten.pow.Tensor_Scalar", torch.tensor([0.0, 1.0]), 2.5)


def test_power_of_tensors() -> None:
    base = torch.tensor([0.0, 0.0, 0.0, 0.5, 2.0, -2.0])
    check("aten.pow.Tensor_Tensor", base, torch.tensor([0.0, 2.0, -1.0, 1.5, -1.5, 3.0]))
    check("aten.pow.Scalar", 2, X)
    check("aten.pow.Scalar", 0.0, torch.tensor([0.0, 1.0]))
    check("aten.float_power.Tensor_Scalar", X.abs(), 2)


def test_power_of_integers() -> None:
    check("aten.pow.Tensor_Scalar", INTS, 3)
    check("aten.pow.Tensor_Tensor", INTS, torch.tensor([0, 1, 3, 5]))
    check(
        "aten.pow.Tensor_Tensor",
        torch.tensor([1, -1, -1, 2, 5]),
        torch.tensor([-1, -2, -3, -1, -2]),
    )
    check("aten.pow.Tensor_Scalar", torch.tensor([True, False]), 2)
    check("aten.pow.Tensor_Scalar", INTS, 0.5, grad=False)


@cases("name", ["abs", "neg", "square"])
def test_unary(name: str) -> None:
    check(f"aten.{name}.default", EDGES)
    check(f"aten.{name}.default", INTS)


def test_fused_multiply_and_divide() -> None:
    check("aten.addcmul.default", X, Y, X + 1, value=-0.5)
    check("aten.addcdiv.default", X, Y, X.abs() + 1, value=0.5)
    check("aten.addcmul.default", INTS, DIVISORS, INTS, value=2)


@cases("weight", [0.3, 0.7])
def test_lerp(weight: float) -> None:
    check("aten.lerp.Scalar", X, Y.expand(3, 4).clone(), weight)


def test_lerp_by_a_tensor() -> None:
    check("aten.lerp.Tensor", X, X * 2, torch.tensor([-1.0, 0.4, 0.5, 2.0]))


@cases("dtype", [torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_casts(dtype: torch.dtype) -> None:
    check("aten._to_copy.default", X * 3, dtype=dtype)


def test_cast_back_from_half() -> None:
    check("aten._to_copy.default", X.bfloat16(), dtype=torch.float32)


@cases("name", ["add.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Tensor"])
@cases("dtype", [torch.bfloat16, torch.float16])
def test_half(name: str, dtype: torch.dtype) -> None:
    check_narrow(f"aten.{name}", X.abs() + 0.5, Y.abs() + 0.5, dtype=dtype)


SHAPES = st.sampled_from([(), (1,), (4,), (3, 1), (3, 4), (2, 3, 4), (0, 4), (2, 1, 1)])


@settings(max_examples=8)
@given(
    SHAPES,
    SHAPES,
    st.sampled_from([torch.float64, torch.int32, torch.bool, torch.uint8]),
)
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


def test_a_power_of_16_bits_whose_gradient_ends_on_the_way() -> None:
    base = torch.tensor([0.000244140625, -3.0, 1.5], dtype=torch.float16)
    exponent = torch.tensor([-0.499755859375, -1.0009765625, 2.5], dtype=torch.float16)
    check("aten.pow.Tensor_Tensor", base, exponent)
