"""Reading and writing by index, and reductions of runs, against torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

from emulator.ops.index import DataDependentIndex
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check, to_jax
from tests.emulator.ops.narrow import check_narrow

G = torch.Generator().manual_seed(0)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=G)


T = torch.tensor
X = randn(3, 4, 5)
ROWS = T([[0, 1, -1], [1, 0, 0]])
MASK = X > 0
COLUMNS = T([True, False, True, True])
# No place twice: what a plain write leaves there would be undefined.
ONCE = torch.stack([torch.randperm(4, generator=G)[:2] for _ in range(15)])
ONCE = ONCE.reshape(3, 5, 2).transpose(1, 2).contiguous()
OFTEN = torch.randint(0, 4, (3, 6, 5), generator=G)

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("index_put.default", (X, [T([0, 2])], randn(2, 4, 5))),
    ("index_put.default", (X, [None, T([0, -2])], randn(5))),
    ("index_put.default", (X, [T([0, 2]), None, T([1, 3])], randn(2, 4))),
    ("index_put.default", (X, [ROWS], randn(2, 3, 4, 5), True)),
    ("index_put.default", (X, [None, None, ROWS], randn(), True)),
    ("index_put.default", (X.long(), [T([0, 2])], T(2))),
    ("index_put.default", (X, [MASK], T(2.0))),
    ("index_put.default", (X, [MASK], randn(int(MASK.sum())))),
    ("index_put.default", (X, [MASK], randn(int(MASK.sum())), True)),
    ("index_put.default", (X, [MASK[:, :, 0]], randn(int(MASK[:, :, 0].sum()), 5))),
    ("index_put.default", (X, [None, COLUMNS], randn(3, 3, 5))),
    ("index_put.default", (X, [None, COLUMNS], randn(1, 5))),
    ("index_put.default", (X, [None, COLUMNS], randn(3, 1, 5))),
    ("masked_scatter.default", (X, MASK, randn(60))),
    ("masked_scatter.default", (X, COLUMNS[:, None], randn(10, 10))),
    ("put.default", (X, T([[1, -1]]), randn(2, 1))),
    ("put.default", (X, T([[1, 1]]), randn(2, 1), True)),
    ("scatter.src", (X, 1, ONCE, randn(3, 2, 5))),
    ("scatter.src", (T(1.0), 0, T(0), T(2.0))),
    ("scatter.value", (X, -2, ONCE, 2.5)),
    ("scatter_add.default", (X, 1, OFTEN, randn(3, 6, 5))),
    ("scatter_add.default", (T(1.0), 0, T([0]), T([2.0]))),
    ("index_add.default", (X, 1, T([0, 2, 0]), randn(3, 3, 5))),
    ("index_copy.default", (X, 1, T([3, 1]), randn(3, 2, 5))),
    ("index_fill.int_Scalar", (X, 1, T([3, -1]), 2)),
    ("index_fill.int_Tensor", (X, 1, T([3, 1]), T(2.0))),
    ("index_fill.int_Tensor", (X, 1, T([0, 2, 0]), T(2.0))),  # a place twice
    ("as_strided_scatter.default", (X.reshape(-1), randn(2, 3), [2, 3], [7, 2], 1)),
    ("as_strided_scatter.default", (X, T(2.0), [], [], 3)),
]


def test_writing() -> None:
    for name, args in CASES:
        check(f"aten.{name}", *args)
    check("aten.index_add.default", X, -1, T([0]), randn(3, 4, 1), alpha=2.5)
    # With a source larger than the index, which torch cannot differentiate:
    check("aten.scatter.src", X, 1, ONCE[:2, :, :3], randn(3, 3, 5), grad=False)
    check("aten.scatter_add.default", X, 1, OFTEN[:2], randn(3, 6, 6), grad=False)
    # Truth values add and multiply as logic does.
    check("aten.index_put.default", MASK, [ROWS], MASK[:2, :3, None, :1].expand(2, 3, 4, 5), True)
    check("aten.scatter_add.default", MASK, 1, ONCE, MASK[:, :2])
    check("aten.scatter_reduce.two", MASK, 1, OFTEN, OFTEN > 1, "prod")


def test_what_is_added_to_nothing_has_a_gradient_of_zeros() -> None:
    nothing, places, source = torch.ones(5, 0), T([0, 0]), randn(5, 2)
    check("aten.index_add.default", nothing, 1, places, source, grad=False)
    add = load_ops()["aten.index_add.default"].lower

    def total(src: Any) -> Any:
        return add(to_jax(nothing), 1, to_jax(places), src).sum()

    assert not jax.grad(total)(to_jax(source)).any()


@cases("include_self", [True, False], every=2)
@cases("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    x, source = X.round(), randn(3, 6, 5).round()  # ties, and zeros beside them
    if reduce == "prod":  # torch differentiates at most one zero of a product
        x, source = X, randn(3, 6, 5)
        source[0, 0] = 0
    check("aten.scatter_reduce.two", x, 1, OFTEN, source, reduce, include_self=include_self)


def test_other_reductions() -> None:
    check("aten.scatter.reduce", X, 1, OFTEN, randn(3, 6, 5), reduce="add", grad=False)
    check("aten.scatter.value_reduce", X, 1, OFTEN, 2.0, reduce="multiply", grad=False)
    for reduce in ("prod", "mean", "amax"):
        check("aten.scatter_reduce.two", (X * 3).long(), 1, OFTEN, OFTEN, reduce)
    for reduce in ("prod", "mean", "amin"):
        check("aten.index_reduce.default", X, 1, T([0, 2, 0]), randn(3, 3, 5), reduce)


def test_a_mask_beside_other_indices_is_refused() -> None:
    with pytest.raises(DataDependentIndex, match="a boolean mask beside other indices"):
        load_ops()["aten.index_put.default"].lower(
            to_jax(X), (to_jax(MASK[:, 0, 0]), to_jax(ROWS[0])), to_jax(T(2.0))
        )


SCALAR, ZERO = torch.tensor(2.0), torch.tensor(0)
TABLE = torch.randn(6, 3, generator=G)

INDEX_CASES: list[tuple[str, tuple[Any, ...]]] = [
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


def test_reading() -> None:
    for name, args in INDEX_CASES:
        check(f"aten.{name}", *args)
    check_narrow("aten.embedding.default", TABLE, ROWS.abs())
    for size in (0, 3, 20):
        x = (X > 0.7)[0]
        check("aten.nonzero_static.default", x, size=size)
        check("aten.nonzero_static.default", x.int(), size=size, fill_value=7)
        check("aten.nonzero_static.default", SCALAR, size=size)


def test_indices_beside_a_mask_may_be_wild() -> None:
    """The ops that torch's decompositions of padding and interpolation leave behind."""
    wild = torch.tensor([0, 2**40, 2, -(2**40)])
    mask = torch.tensor([True, False, True, False])[:, None]
    places = [None, wild[:, None], torch.arange(5)]
    check("aten._unsafe_masked_index.default", X, mask, places, 7.0, grad=False)
    args = (X, mask, places, torch.randn(3, 4, 5))
    check("aten._unsafe_masked_index_put_accumulate.default", *args, grad=False)


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


RUNS = torch.randn(6, 2, generator=G).round(decimals=1)
RUNS[1] = RUNS[2] = RUNS[0]  # equals share a gradient
LENGTHS = torch.tensor([3, 0, 2, 1])
REDUCES = ("max", "min", "sum", "mean", "prod")


@pytest.mark.parametrize(
    ("reduce", "initial"),
    [
        pytest.param(reduce, initial, marks=[] if reduce in ("max", "sum") else pytest.mark.slow)
        for initial in (None, 0.5)
        for reduce in REDUCES
    ],
)
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    x = RUNS.clone()
    x[3, 0] = float("nan") if reduce in ("max", "min") else 0.0
    name, rest = "aten.segment_reduce.default", {"unsafe": False, "initial": initial}
    check(name, x, reduce, lengths=LENGTHS, axis=0, **rest)
    check(name, x, reduce, offsets=torch.tensor([0, 3, 3, 5, 6]), axis=0, **rest)
    lengths = torch.tensor([[2, 0], [1, 1], [0, 2], [2, 0], [1, 1], [2, 0]])
    check(name, x, reduce, lengths=lengths, axis=1, **rest)


def test_repeat_interleave() -> None:
    for dim, repeats in ((None, torch.arange(12)), (1, T([2, 3]))):
        size = int(repeats.sum())
        check("aten.repeat_interleave.self_Tensor", RUNS, repeats, dim, output_size=size)
        check("aten.repeat_interleave.Tensor", repeats, output_size=size)
