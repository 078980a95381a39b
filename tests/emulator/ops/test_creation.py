"""What makes tensors of sizes, and window functions, against torch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch

from emulator.errors import OpLimit
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
INT, HALF, DOUBLE = torch.int64, torch.bfloat16, torch.float64

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("full.default", ([2, 3], 2), {}),
    ("full.default", ([2, 3], True), {}),
    ("full.default", ([], 2.5), {"dtype": HALF}),
    ("full.default", ([2], -float("inf")), {}),
    ("zeros.default", ([2, 0],), {"dtype": INT}),
    ("ones.default", ([2],), {}),
    ("zeros_like.default", (X,), {"dtype": INT}),
    ("ones_like.default", (X,), {}),
    ("full_like.default", (X, 2), {}),
    ("new_zeros.default", (X.double(), [2]), {}),
    ("new_ones.default", (X, [2]), {"dtype": torch.bool}),
    ("new_full.default", (X, [2], 7), {}),
    ("scalar_tensor.default", (2,), {}),
    ("scalar_tensor.default", (2.5,), {"dtype": DOUBLE}),
    ("arange.default", (5,), {}),
    ("arange.default", (0,), {}),
    ("arange.default", (2.5,), {}),
    ("arange.default", (5,), {"dtype": torch.float32}),
    ("arange.start", (-2, 3), {}),
    ("arange.start_step", (5, -1, -2), {}),
    ("arange.start_step", (0.0, 1.0, 0.1), {}),
    ("arange.start_step", (0, 1, 0.1), {"dtype": DOUBLE}),
    ("arange.start_step", (False, True, True), {}),  # of whole numbers
    ("range.step", (0, 6, 2), {}),
    ("range.default", (0.1, 5), {"dtype": INT}),
    ("range.default", (0.1, 5), {}),
    ("range.step", (0, 5, 1.5), {"dtype": INT}),
    ("range.step", (5.5, 0.2, -1.5), {"dtype": INT}),
    ("range.step", (5.5, 0.2, -1.5), {"dtype": DOUBLE}),
    ("range.step", (-0.5, 3.7, 1), {"dtype": torch.int32}),
    ("range.step", (2**53 + 1, 2**53 + 3, 1), {"dtype": torch.int64}),
    ("range.step", (0, 2**62, 2**60), {"dtype": torch.int64}),
    ("range.step", (0, -7, -2), {"dtype": torch.int8}),
    ("range.step", (0, 1, 0.1), {"dtype": HALF}),
    ("range.step", (0, 1, 0.1), {"dtype": DOUBLE}),
    ("range.step", (0.1, 0.7, 0.2), {"dtype": torch.float16}),
    ("range.step", (0.1, 0.7, 0.2), {}),
    ("eye.default", (3,), {}),
    ("eye.m", (3, 2), {"dtype": INT}),
    ("linspace.default", (-1.5, 3, 1), {}),
    ("linspace.default", (-1.5, 3, 100), {}),
    ("linspace.default", (0, 10, 7), {"dtype": INT}),
    ("linspace.default", (0, 1, 9), {"dtype": HALF}),
    ("linspace.Tensor_Scalar", (torch.tensor(2.0), 10, 7), {}),
    ("logspace.default", (0, 1, 7), {}),
    ("logspace.default", (0, 3, 5, 2.0), {"dtype": INT}),
    ("tril_indices.default", (3, 4, -1), {}),
    ("tril_indices.default", (3, 4, 5), {}),
    ("triu_indices.default", (4, 3, 1), {}),
    ("triu_indices.default", (3, 4, -2), {"dtype": torch.int32}),
]


def test_creation() -> None:
    for name, args, kwargs in CASES:
        check(f"aten.{name}", *args, grad=False, **kwargs)


UNINITIALIZED: dict[str, tuple[Any, ...]] = {
    "empty.memory_format": ((2, 3),),
    "empty_strided.default": ((2, 3), (3, 1)),
    "empty_permuted.default": ((2, 3), (1, 0)),
    "new_empty.default": (jnp.ones(1), (2, 3)),
    "new_empty_strided.default": (jnp.ones(1), (2, 3), (3, 1)),
    "empty_like.default": (jnp.ones((2, 3)),),
}


@pytest.mark.parametrize("name", UNINITIALIZED)
def test_what_torch_leaves_uninitialized_is_zero(name: str) -> None:
    out = load_ops()[f"aten.{name}"].lower(*UNINITIALIZED[name])
    assert out.shape == (2, 3)
    assert not out.any()


def test_copies() -> None:
    check("aten.fill.Scalar", X, 3)
    check("aten.fill.Tensor", X, torch.tensor(3.0))
    check("aten.copy.default", X, torch.randn(4), grad=False)
    check("aten.copy.default", X.bfloat16(), torch.randn(3, 1), grad=False)
    check("aten.to.dtype", X, DOUBLE)
    check("aten.to.other", X, torch.ones(1, dtype=INT))
    check("aten.type_as.default", X, torch.ones(1, dtype=DOUBLE))
    check("aten.zero.default", X)


def test_a_triangle_of_more_than_is_written_down_is_refused() -> None:
    lower = load_ops()["aten.tril_indices.default"].lower
    with pytest.raises(OpLimit, match="in elements, is 1000000000000; the device"):
        lower(10**6, 10**6, -(10**6))


def test_windows() -> None:
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for length in (0, 1, 2, 9):
            check(f"aten.{name}_window.default", length)
            for periodic in (False, True):
                check(f"aten.{name}_window.periodic", length, periodic, dtype=DOUBLE)
    check("aten.hamming_window.periodic_alpha", 7, True, 0.6)
    check("aten.hamming_window.periodic_alpha_beta", 7, True, 0.6, 0.3)
    check("aten.kaiser_window.beta", 7, True, 5.0)
