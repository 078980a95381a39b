"""Joining, splitting and selecting against torch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
MATRIX, VECTOR, SCALAR = X[0], X[0, 0], torch.tensor(2.0)
LAST = 9223372036854775807

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("cat.default", ([X, X[:, :, :2]], -1)),
    ("cat.default", ([torch.zeros(0), X], 1)),
    ("cat.default", ([X, X.double()], 0)),
    ("cat.default", ([MATRIX, MATRIX.long()], 0)),
    ("stack.default", ([X, X], -1)),
    ("stack.default", ([SCALAR, SCALAR],)),
    ("split.Tensor", (X, 3, 2)),
    ("split_with_sizes.default", (X, [1, 0, 4], -1)),
    ("chunk.default", (X, 3, 2)),
    ("unbind.int", (X, 1)),
    ("select.int", (X, -1, -2)),
    ("narrow.default", (X, 1, -3, 2)),
    ("tensor_split.sections", (X, 3, 2)),
    ("tensor_split.indices", (X, [1, 3, 2, -1, 9], 2)),
    ("hsplit.int", (X, 2)),
    ("hsplit.int", (VECTOR[:4], 2)),
    ("vsplit.array", (X, [1])),
    ("dsplit.int", (X, 5)),
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_cases(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
def test_stacks(name: str) -> None:
    check(f"aten.{name}.default", [X, X])
    check(f"aten.{name}.default", [VECTOR, VECTOR])
    check(f"aten.{name}.default", [SCALAR, SCALAR])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("x", [SCALAR, VECTOR, MATRIX])
def test_at_least(rank: int, x: torch.Tensor) -> None:
    check(f"aten.atleast_{rank}d.default", x, grad=False)


@settings(max_examples=8)
@given(
    st.none() | st.integers(-8, 8),
    st.none() | st.integers(-8, 8) | st.just(LAST),
    st.integers(1, 3),
)
def test_any_slice(start: int | None, end: int | None, step: int) -> None:
    check("aten.slice.Tensor", VECTOR, 0, start, end, step)


def test_nothing_in_pieces() -> None:
    check("aten.chunk.default", torch.zeros(2, 0), 4, 1)


def test_more_pieces_than_the_device_cuts_are_refused() -> None:
    lower = load_ops()["aten.hsplit.int"].lower
    with pytest.raises(OpLimit, match=r"the number of pieces is 1000000000; .* with 512 at most"):
        lower(jnp.zeros((2, 3)), 10**9)
    with pytest.raises(OpLimit, match="the number of pieces is 100000"):
        load_ops()["aten.split.Tensor"].lower(jnp.zeros(10**5), 1)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.split_copy.Tensor", (1,)),
        ("aten.split_with_sizes_copy.default", ((1,) * 3000,)),
        ("aten.chunk.default", (3000,)),
        ("aten.unbind.int", ()),
        ("aten.unbind_copy.int", ()),
        ("aten.tensor_split.sections", (3000,)),
        ("aten.tensor_split.indices", (tuple(range(1, 3000)),)),
    ],
)
def test_every_way_of_cutting_has_the_bound(name: str, args: tuple[Any, ...]) -> None:
    """3000 pieces, of which each is compiled for itself, took 30 s."""
    with pytest.raises(OpLimit, match="the number of pieces is 3000"):
        load_ops()[name].lower(jnp.zeros(3000, jnp.int32), *args)
