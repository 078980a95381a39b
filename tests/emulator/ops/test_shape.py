"""Views, joins, splits, repeats and padding against torch."""

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


def test_views() -> None:
    for name, args in CASES:
        check(f"aten.{name}", *args)
    for indexing in ("ij", "xy"):
        check("aten.meshgrid.indexing", [X[0, 0], X[0, :, 0], SCALAR], indexing=indexing)
    for dtype in (torch.int32, torch.int16, torch.int64, torch.uint8):
        check("aten.view.dtype", X, dtype)
    check("aten.linalg_diagonal.default", torch.randn(3, 2, 4))
    check("aten.linalg_diagonal.default", torch.randn(3, 2, 4), offset=1, dim1=0)


def test_detach_stops_the_gradient() -> None:
    assert not load_ops()["aten.detach.default"].differentiable
    check("aten.detach.default", X)


@settings(max_examples=8)
@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_any_permutation(order: list[int], shape: list[int]) -> None:
    check("aten.permute.default", torch.randn(shape), list(order))


JOINED = torch.randn(3, 4, 5, generator=G)
MATRIX, VECTOR = JOINED[0], JOINED[0, 0]
LAST = 9223372036854775807

JOINS: list[tuple[str, tuple[Any, ...]]] = [
    ("cat.default", ([JOINED, JOINED[:, :, :2]], -1)),
    ("cat.default", ([torch.zeros(0), JOINED], 1)),
    ("cat.default", ([JOINED, JOINED.double()], 0)),
    ("cat.default", ([MATRIX, MATRIX.long()], 0)),
    ("stack.default", ([JOINED, JOINED], -1)),
    ("stack.default", ([SCALAR, SCALAR],)),
    ("split.Tensor", (JOINED, 3, 2)),
    ("split_with_sizes.default", (JOINED, [1, 0, 4], -1)),
    ("chunk.default", (JOINED, 3, 2)),
    ("chunk.default", (torch.zeros(2, 0), 4, 1)),
    ("unbind.int", (JOINED, 1)),
    ("select.int", (JOINED, -1, -2)),
    ("narrow.default", (JOINED, 1, -3, 2)),
    ("tensor_split.sections", (JOINED, 3, 2)),
    ("tensor_split.indices", (JOINED, [1, 3, 2, -1, 9], 2)),
    ("hsplit.int", (JOINED, 2)),
    ("hsplit.int", (VECTOR[:4], 2)),
    ("vsplit.array", (JOINED, [1])),
    ("dsplit.int", (JOINED, 5)),
]


def test_joins() -> None:
    for name, args in JOINS:
        check(f"aten.{name}", *args)
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        for part in (JOINED, VECTOR, SCALAR):
            check(f"aten.{name}.default", [part, part])
    for rank in (1, 2, 3):
        for x in (SCALAR, VECTOR, MATRIX):
            check(f"aten.atleast_{rank}d.default", x, grad=False)


@settings(max_examples=8)
@given(
    st.none() | st.integers(-8, 8),
    st.none() | st.integers(-8, 8) | st.just(LAST),
    st.integers(1, 3),
)
def test_any_slice(start: int | None, end: int | None, step: int) -> None:
    check("aten.slice.Tensor", VECTOR, 0, start, end, step)


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


IMAGE = torch.randn(2, 8, 3, 4, generator=G)


REARRANGED: list[tuple[str, tuple[Any, ...]]] = [
    ("tril.default", (JOINED, -1)),
    ("triu.default", (JOINED, 2)),
    ("tril.default", (JOINED > 0,)),
    ("repeat.default", (JOINED, [2, 1, 1, 3])),
    ("repeat.default", (JOINED, [0, 1, 1])),
    ("tile.default", (JOINED, [2])),
    ("roll.default", (JOINED, [1, -2], [0, 2])),
    ("roll.default", (JOINED, [7])),
    ("flip.default", (JOINED, [0, -1])),
    ("flip.default", (torch.tensor(1.0), [0])),
    ("fliplr.default", (JOINED,)),
    ("flipud.default", (JOINED,)),
    ("rot90.default", (JOINED, 3, [1, 2])),
    ("rot90.default", (JOINED, -2, [2, 0])),
    ("repeat_interleave.self_int", (JOINED, 2)),
    ("repeat_interleave.self_int", (JOINED, 3, -2)),
    ("diagonal.default", (JOINED, -1, 2, 0)),
    ("diag.default", (JOINED[0], 1)),
    ("diag.default", (JOINED[0, 0], -2)),
    ("diagflat.default", (JOINED[0], 1)),
    ("diag_embed.default", (JOINED, 1, 2, 0)),
    ("diag_embed.default", (JOINED, -2)),
    ("block_diag.default", ([JOINED[0], JOINED[0, 0], torch.tensor(2.0)],)),
    ("unfold.default", (JOINED, -1, 3, 1)),
    ("unfold.default", (JOINED, 1, 2, 2)),
    ("unfold.default", (JOINED, 1, 1, 5)),
    ("pixel_shuffle.default", (IMAGE, 2)),
    ("pixel_unshuffle.default", (IMAGE.reshape(2, 2, 4, 12), 2)),
    ("channel_shuffle.default", (IMAGE, 4)),
    ("as_strided.default", (JOINED, [3, 2], [2, 1], 3)),
    ("as_strided.default", (JOINED, [3, 2], [1, 1])),
    ("select_scatter.default", (JOINED, torch.randn(3, 5), 1, -1)),
    ("diagonal_scatter.default", (JOINED, torch.randn(4, 2), 1, 2, 0)),
    ("diagonal_scatter.default", (JOINED, torch.randn(4, 3), -1, 2, 0)),
]


def test_rearranged() -> None:
    for name, args in REARRANGED:
        check(f"aten.{name}", *args)
    for place in ((1, 0, 2), (1, -3, 99, 2), (2, 1, 4, 3), (0, 0, LAST), (1, 3, 1)):
        source = torch.randn(torch.ops.aten.slice.Tensor(JOINED, *place).shape)
        check("aten.slice_scatter.default", JOINED, source, *place)
    check("aten.unfold.default", torch.randn(2, 90, 3), 1, 70, 3)


PADDED = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


def test_padding() -> None:
    for mode in ("reflect", "replicate", "circular"):
        for pad in ((1, 2, 2, 1), (0, 3, 0, 0), (-1, 2, 1, -2)):
            check("aten.pad.default", PADDED, pad, mode)
    for pad in ((1, 2), (-1, 0, 2, 1), (0, 0, 0, 0, 1, -2)):
        check("aten.constant_pad_nd.default", PADDED, pad, 2.5)
        check("aten.pad.default", PADDED, pad)
    check("aten._pad_circular.default", PADDED, [1, 2, 0, 1], grad=False)
    check("aten.reflection_pad1d.default", PADDED[0], [2, 1])
    check("aten.reflection_pad3d.default", PADDED, [1, 1, 1, 1, 1, 1])
    check("aten.replication_pad3d.default", PADDED, [3, 1, 2, 3, 4, 1])
    for number in range(4):
        check("aten._pad_enum.default", PADDED[0], [2, 1], number, grad=False)
