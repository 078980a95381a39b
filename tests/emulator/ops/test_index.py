"""Reading by index, and embedding tables, against torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

from emulator.ops.index import DataDependentIndex
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check, to_jax
from tests.emulator.ops.narrow import check_narrow

G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
ROWS = torch.tensor([[0, 1, -1], [1, 0, 0]])
SCALAR, ZERO = torch.tensor(2.0), torch.tensor(0)
TABLE = torch.randn(6, 3, generator=G)

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("index.Tensor", (X, [None, None, ROWS])),
    ("index.Tensor", (X, [ROWS, None, ROWS])),
    ("index.Tensor", (X, [None, ROWS, ZERO])),
    ("index.Tensor", (X, [ROWS[:, :0]])),
    ("index_select.default", (X, -1, torch.tensor([3, 0, 0]))),
    ("index_select.default", (SCALAR, 0, torch.tensor([0]))),
    ("gather.default", (X, 1, torch.tensor([[[0, 1, 2]], [[2, 1, 0]]]))),
    ("gather.default", (SCALAR, 0, torch.tensor([0, 0]))),
    ("take.default", (X, torch.tensor([[0, 59, -1]]))),
    ("take_along_dim.default", (X, torch.tensor([[[1], [0], [2], [3]]]), 2)),
    ("take_along_dim.default", (X, torch.tensor([5, 7]))),
    ("embedding.default", (TABLE, ROWS.abs())),
    ("embedding.default", (TABLE, ROWS.abs(), 1)),
    ("embedding.default", (TABLE, ROWS.abs(), -1, True)),
    ("embedding.default", (TABLE, ROWS.abs().int(), 0, True)),
    ("one_hot.default", (ROWS.abs(), 4)),
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_cases(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)


def test_indices_beside_a_mask_may_be_wild() -> None:
    """The ops that torch's decompositions of padding and interpolation leave behind."""
    wild = torch.tensor([0, 2**40, 2, -(2**40)])
    mask = torch.tensor([True, False, True, False])[:, None]
    places = [None, wild[:, None], torch.arange(5)]
    check("aten._unsafe_masked_index.default", X, mask, places, 7.0, grad=False)
    args = (X, mask, places, torch.randn(3, 4, 5))
    check("aten._unsafe_masked_index_put_accumulate.default", *args, grad=False)


def test_half_embedding() -> None:
    check_narrow("aten.embedding.default", TABLE, ROWS.abs())


def test_a_mask_as_index_is_refused() -> None:
    with pytest.raises(DataDependentIndex, match=r"aten\.index\.Tensor: found a boolean mask") as e:
        load_ops()["aten.index.Tensor"].lower(to_jax(X), (to_jax(X > 0),))
    assert e.value.op == "aten.index.Tensor"
    assert "torch.where" in e.value.hint


def test_one_hot_without_a_number_of_classes_is_refused() -> None:
    with pytest.raises(DataDependentIndex, match="Give num_classes"):
        load_ops()["aten.one_hot.default"].lower(to_jax(ROWS))


INDICES = torch.tensor([1, 2, 3, 1, 5, 0])


@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag(mode: int, padding: int | None) -> None:
    """torch reads only the bags; their gradient reaches the table and the weights."""
    last = padding is not None
    offsets = torch.tensor([0, 2, 2, 6]) if last else torch.tensor([0, 2, 2, 5])
    table = TABLE.clone().requires_grad_()
    weights = torch.randn(6).requires_grad_() if mode == 0 else None
    want = torch.embedding_bag(table, INDICES, offsets, False, mode, False, weights, last, padding)
    leaves = [table] if weights is None else [table, weights]
    cotangent = torch.randn(want[0].shape)
    want_grads = torch.autograd.grad(want[0], leaves, cotangent)
    name = "_embedding_bag.default" if padding == 1 else "embedding_bag.padding_idx"
    lower = load_ops()[f"aten.{name}"].lower
    with jax.enable_x64(True):
        rest = to_jax(INDICES), to_jax(offsets), False, mode, False

        @jax.jit
        def both(arrays: list[Any], cotangent: Any) -> Any:
            def bags(arrays: list[Any]) -> tuple[Any, Any]:
                given = arrays[1] if weights is not None else None
                out, *others = lower(arrays[0], *rest, given, last, padding)
                return out, others

            out, pull, others = jax.vjp(bags, arrays, has_aux=True)
            return out, others, pull(cotangent)[0]

        out, others, grads = both([to_jax(t) for t in leaves], to_jax(cotangent))
    np.testing.assert_allclose(out, want[0].detach(), rtol=1e-6, atol=1e-6)
    assert others[0].shape == want[1].shape, "torch leaves out what its fast path has no use for"
    for got, expected in zip(others, want[1:], strict=True):
        if expected.numel():
            np.testing.assert_array_equal(got, expected)
    for got, expected in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [0, 3, 20])
def test_nonzero_of_a_stated_size(size: int) -> None:
    x = (X > 0.7)[0]
    check("aten.nonzero_static.default", x, size=size)
    check("aten.nonzero_static.default", x.int(), size=size, fill_value=7)
    check("aten.nonzero_static.default", SCALAR, size=size)
