"""Matrix products, also grouped ones, against torch."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check, to_jax
from tests.emulator.ops.narrow import check_narrow

Shape = tuple[int, ...]


def randn(*shapes: Shape) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(s, generator=generator) for s in shapes]


def test_linear() -> None:
    check("aten.linear.default", *randn((4,), (5, 4)), *randn((5,)))
    check("aten.linear.default", *randn((3, 4), (5, 4)))
    check("aten.linear.default", *randn((2, 3, 4), (5, 4)), *randn((5,)))
    check("aten.linear.default", *randn((3, 4), (4,)))
    check("aten.linear.default", torch.zeros(4, 0), torch.zeros(2, 0), torch.ones(2))
    factors = randn((2, 3, 4), (2, 3, 5), (6, 4, 5))
    check("aten.bilinear.default", *factors)
    check("aten.bilinear.default", *factors, *randn((6,)))


PRODUCTS: list[tuple[str, Shape, Shape]] = [
    ("matmul", (4,), (4,)),
    ("matmul", (4,), (4, 5)),
    ("matmul", (3, 4), (4,)),
    ("matmul", (2, 3, 4), (4, 5)),
    ("matmul", (4,), (2, 4, 5)),
    ("matmul", (2, 1, 3, 4), (6, 4, 5)),
    ("matmul", (0, 4), (4, 5)),
    ("matmul", (2, 1, 1, 2, 1, 1, 2, 1, 3, 4), (1, 2, 1, 1, 1, 2, 1, 2, 4, 5)),  # 8 batch axes
    ("matmul", (1,) * 11 + (2, 3, 4), (2,) + (1,) * 11 + (4, 5)),
    ("mm", (3, 4), (4, 5)),
    ("bmm", (2, 3, 4), (2, 4, 5)),
    ("mv", (3, 4), (4,)),
    ("dot", (4,), (4,)),
    ("vdot", (4,), (4,)),
    ("outer", (3,), (4,)),
    ("inner", (2, 4), (3, 4)),
    ("inner", (), (3, 4)),
    ("kron", (2, 3), (3, 2)),
    ("kron", (2,), (3, 2)),
    ("linalg_vecdot", (3, 4), (3, 4)),
]


def test_products() -> None:
    for name, a, b in PRODUCTS:
        check(f"aten.{name}.default", *randn(a, b))
    check("aten.mm.default", torch.arange(12).reshape(3, 4), torch.arange(8).reshape(4, 2))
    check("aten.mm.default", *(t.double() for t in randn((3, 4), (4, 5))))
    check("aten.inner.default", torch.tensor(3), torch.arange(4, dtype=torch.int32))


def test_added_products() -> None:
    for name, *shapes in (
        ("addmm", (5,), (3, 4), (4, 5)),
        ("addmm", (3, 5), (3, 4), (4, 5)),
        ("addmv", (3,), (3, 4), (4,)),
        ("baddbmm", (2, 3, 5), (2, 3, 4), (2, 4, 5)),
        ("addbmm", (3, 5), (2, 3, 4), (2, 4, 5)),
        ("addr", (3, 5), (3,), (5,)),
    ):
        check(f"aten.{name}.default", *randn(*shapes), beta=0.5, alpha=2)
    check("aten.addmm.default", *randn((5,), (3, 4), (4, 5)))
    # A factor of zero ignores NaN.
    check("aten.addmm.default", torch.full((5,), math.nan), *randn((3, 4), (4, 5)), beta=0)


EQUATIONS: list[tuple[str, tuple[Shape, ...]]] = [
    ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
    ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
    ("...ij,jk->...ik", ((2, 3, 4), (4, 5))),
    ("ij,jk", ((3, 4), (4, 5))),
    ("ba, bc", ((3, 4), (3, 5))),
    ("ii->i", ((3, 3),)),
    ("ij->j", ((3, 4),)),
    ("ij,kl->ik", ((3, 4), (2, 5))),
    ("i,ij,j->", ((3,), (3, 4), (4,))),
    ("bi,bi->bi", ((1, 4), (3, 4))),
    ("td,edi->eti", ((3, 4), (2, 4, 5))),
    ("edi,td->eti", ((2, 4, 5), (3, 4))),
    ("te,etd->td", ((3, 2), (2, 3, 4))),
    ("etd,te->td", ((2, 3, 4), (3, 2))),
]


def test_contractions() -> None:
    for equation, shapes in EQUATIONS:
        check("aten.einsum.default", equation, randn(*shapes))
    check("aten.tensordot.default", *randn((2, 3), (3, 4)), [-1], [0])
    check("aten.tensordot.default", *randn((2, 3, 4), (4, 5, 3)), [1, 2], [2, 0])
    check("aten.tensordot.default", *randn((2,), (3,)), [], [])
    for shapes in (((3, 4), (4, 5)), ((3, 9), (9, 2), (2, 8), (8, 4)), ((4,), (4, 5), (5,))):
        check("aten.linalg_multi_dot.default", randn(*shapes))


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, Shape, Shape]:
    """An equation of two operands in any order of axes, with their shapes."""
    kinds = draw(st.lists(st.sampled_from(["batch", "summed", "rows", "columns"]), max_size=5))
    letters = dict(zip("abcde", kinds, strict=False))
    sizes = {c: draw(st.integers(1, 4)) for c in letters}

    def shuffled(without: set[str]) -> str:
        return "".join(draw(st.permutations([c for c, k in letters.items() if k not in without])))

    left, right, out = shuffled({"columns"}), shuffled({"rows"}), shuffled({"summed"})
    shapes = [tuple(sizes[c] for c in term) for term in (left, right)]
    return f"{left},{right}->{out}", shapes[0], shapes[1]


@given(drawn=contractions(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=2 * settings().max_examples // 3)
def test_contractions_in_any_order_of_axes(
    drawn: tuple[str, Shape, Shape], dtype: torch.dtype
) -> None:
    equation, *shapes = drawn
    check("aten.einsum.default", equation, [x.to(dtype) for x in randn(*shapes)])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("td,edi->eti", ((8, 4), (3, 4, 5))), ("te,etd->td", ((8, 3), (3, 8, 4)))],
)
def test_what_a_mixture_of_experts_contracts_moves_no_large_array(
    equation: str, shapes: tuple[Shape, ...]
) -> None:
    """A transposition is a slow loop: none of what all experts make of all tokens."""
    arrays = [to_jax(x) for x in randn(*shapes)]
    einsum = load_ops()["aten.einsum.default"].lower

    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(einsum(equation, [a, b])))

    text = jax.jit(jax.grad(loss, (0, 1))).lower(*arrays).as_text()
    moved = re.findall(r"stablehlo.transpose .* -> tensor<([0-9x]+)xf32>", text)
    sizes = {math.prod(map(int, shape.split("x"))) for shape in moved}
    assert not sizes & {3 * 8 * 5, 3 * 8 * 4}


def test_half_types() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        check_narrow("aten.linear.default", *randn((7, 32), (16, 32), (16,)), dtype=dtype)
    check_narrow("aten.bmm.default", *randn((2, 7, 32), (2, 32, 9)))
    check_narrow("aten.addmm.default", *randn((9,), (7, 32), (32, 9)))
    check_narrow("aten.einsum.default", "bij,bkj->bik", randn((2, 3, 16), (2, 5, 16)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 256), (320, 256)])
def test_a_bias_is_broadcast(shape: Shape) -> None:
    """Also by oneDNN, which takes so large a product of 16-bit numbers where it can."""
    check_narrow("aten.linear.default", *randn((320, 64), (256, 64), shape))


def test_what_a_repeated_operand_gets_is_rounded_once() -> None:
    """257 in one product of the batch and -256 in the other are 1; rounded apart, they are 0."""
    ones = torch.ones(1, 1, dtype=torch.bfloat16)
    other = torch.tensor([[[256.0, 1.0]], [[-256.0, 0.0]]]).bfloat16()
    matmul, einsum = (load_ops()[f"aten.{name}.default"].lower for name in ("matmul", "einsum"))
    for run, a, b in (
        (matmul, ones, other),
        (matmul, ones[None], other),
        (matmul, other.mT, ones[None]),
        (lambda a, b: einsum("td,edi->eti", [a, b]), ones, other),
    ):
        arrays = [to_jax(t) for t in (a, b)]
        y, pull = jax.vjp(run, *arrays)
        grads = [g for g, x in zip(pull(jnp.ones_like(y)), arrays, strict=True) if x.size == 1]
        assert [float(g.sum()) for g in grads] == [1.0]


NAME = "aten._grouped_mm.default"


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def ends(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_groups() -> None:
    for offs in (ends(2, 2, 12), ends(0, 5, 12), ends(12, 12, 12)):
        check(NAME, data(12, 8), data(3, 8, 4), offs, frozen=(2,))
    check(NAME, data(3, 8, 4), data(4, 12), ends(2, 2, 12), frozen=(2,))
    check(NAME, data(8, 12), data(12, 4), ends(2, 2, 12), frozen=(2,))
    check(NAME, data(3, 8, 4), data(3, 4, 8))
    half = torch.bfloat16
    check(NAME, data(12, 8, dtype=half), data(3, 8, 8, dtype=half), ends(1, 7, 12), frozen=(2,))


def test_rows_after_the_last_group_are_zero_and_another_groups_nan_stays_there() -> None:
    weight = data(3, 8, 4)
    weight[1] = torch.nan
    lower = jax.jit(load_ops()["samba.grouped_mm.default"].lower)
    x = data(12, 8)
    with jax.enable_x64(True):
        y = np.asarray(lower(to_jax(x), to_jax(weight), to_jax(ends(2, 5, 9).long())))
    assert np.isnan(y[2:5]).all()
    assert (y[9:] == 0).all()
    np.testing.assert_allclose(y[:2], (x[:2] @ weight[0]).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y[5:9], (x[5:9] @ weight[2]).numpy(), rtol=1e-5, atol=1e-5)
