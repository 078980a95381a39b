"""Writing by index against torch."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from emulator.ops.index import DataDependentIndex
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check, to_jax

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
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_cases(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten.{name}", *args)


def test_source_larger_than_the_index() -> None:
    """torch cannot differentiate this; the values still agree."""
    check("aten.scatter.src", X, 1, ONCE[:2, :, :3], randn(3, 3, 5), grad=False)
    check("aten.scatter_add.default", X, 1, OFTEN[:2], randn(3, 6, 6), grad=False)


def test_booleans_add_and_multiply_as_logic() -> None:
    check("aten.index_put.default", MASK, [ROWS], MASK[:2, :3, None, :1].expand(2, 3, 4, 5), True)
    check("aten.scatter_add.default", MASK, 1, ONCE, MASK[:, :2])
    check("aten.scatter_reduce.two", MASK, 1, OFTEN, OFTEN > 1, "prod")


def test_add_a_multiple() -> None:
    check("aten.index_add.default", X, -1, T([0]), randn(3, 4, 1), alpha=2.5)


def test_what_is_added_to_nothing_has_a_gradient_of_zeros() -> None:
    nothing, places, source = torch.ones(5, 0), T([0, 0]), randn(5, 2)
    check("aten.index_add.default", nothing, 1, places, source, grad=False)
    add = load_ops()["aten.index_add.default"].lower

    def total(src: Any) -> Any:
        return add(to_jax(nothing), 1, to_jax(places), src).sum()

    assert not jax.grad(total)(to_jax(source)).any()


def test_older_reductions() -> None:
    check("aten.scatter.reduce", X, 1, OFTEN, randn(3, 6, 5), reduce="add", grad=False)
    check("aten.scatter.value_reduce", X, 1, OFTEN, 2.0, reduce="multiply", grad=False)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    x, source = X.round(), randn(3, 6, 5).round()  # ties, and zeros beside them
    if reduce == "prod":  # torch differentiates at most one zero of a product
        x, source = X, randn(3, 6, 5)
        source[0, 0] = 0
    check("aten.scatter_reduce.two", x, 1, OFTEN, source, reduce, include_self=include_self)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax"])
def test_scatter_reduce_of_integers(reduce: str) -> None:
    check("aten.scatter_reduce.two", (X * 3).long(), 1, OFTEN, OFTEN, reduce)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amin"])
def test_index_reduce(reduce: str) -> None:
    check("aten.index_reduce.default", X, 1, T([0, 2, 0]), randn(3, 3, 5), reduce)


def test_a_mask_beside_other_indices_is_refused() -> None:
    with pytest.raises(DataDependentIndex, match="a boolean mask beside other indices"):
        load_ops()["aten.index_put.default"].lower(
            to_jax(X), (to_jax(MASK[:, 0, 0]), to_jax(ROWS[0])), to_jax(T(2.0))
        )


def test_a_place_named_twice_is_filled_once() -> None:
    check("aten.index_fill.int_Tensor", X, 1, T([0, 2, 0]), T(2.0))


def test_strided_scatter() -> None:
    check("aten.as_strided_scatter.default", X.reshape(-1), randn(2, 3), [2, 3], [7, 2], 1)
    check("aten.as_strided_scatter.default", X, T(2.0), [], [], 3)
