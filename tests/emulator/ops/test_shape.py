"""Views against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check

G = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, generator=G)
SCALAR = torch.tensor(2.0)

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("view.default", (X, [-1, 4])),
    ("view.default", (torch.zeros(0, 3), [3, 0])),
    ("_unsafe_view.default", (X, [24])),
    ("view_as.default", (X, torch.zeros(4, 6))),
    ("flatten.using_ints", (X, 1, -1)),
    ("flatten.using_ints", (SCALAR,)),
    ("unflatten.int", (X, -1, [2, -1])),
    ("ravel.default", (X,)),
    ("_reshape_alias.default", (X, [6, 4], [4, 1])),
    ("permute.default", (X, [2, 0, -2])),
    ("transpose.int", (X, 0, -1)),
    ("transpose.int", (SCALAR, 0, -1)),
    ("t.default", (X[0],)),
    ("t.default", (X[0, 0],)),
    ("mT.default", (X,)),
    ("movedim.int", (X, 0, -1)),
    ("movedim.intlist", (X, [0, 1], [-1, 0])),
    ("unsqueeze.default", (X, -1)),
    ("unsqueeze.default", (X, -4)),
    ("squeeze.default", (X[:, :1],)),
    ("squeeze.dim", (X[:, :1], 0)),
    ("squeeze.dim", (X[:, :1], -2)),
    ("squeeze.dim", (SCALAR, 0)),
    ("squeeze.dims", (X[:1, :1], [0, 1, 2])),
    ("expand.default", (X[:, :1], [5, 2, 3, -1])),
    ("expand.default", (SCALAR, [2, 2])),
    ("expand_as.default", (X[:, :1], X)),
    ("broadcast_tensors.default", ([X, X[0, 0], SCALAR],)),
    ("clone.default", (X,)),
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_views(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid(indexing: str) -> None:
    check("aten.meshgrid.indexing", [X[0, 0], X[0, :, 0], SCALAR], indexing=indexing)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int64, torch.uint8])
def test_bytes_as_another_dtype(dtype: torch.dtype) -> None:
    check("aten.view.dtype", X, dtype)


def test_detach_stops_the_gradient() -> None:
    assert not load_ops()["aten.detach.default"].differentiable
    check("aten.detach.default", X)


@settings(max_examples=8)
@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_any_permutation(order: list[int], shape: list[int]) -> None:
    check("aten.permute.default", torch.randn(shape), list(order))
