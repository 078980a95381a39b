"""Parallel patterns: shapes and values, eagerly and on the device, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba.errors import ArgumentError
from samba.functional import stir
from samba.functional._windows import sn_gather, sn_scatter
from samba.functional.stir import (
    SNType,
    sn_fma,
    sn_imm,
    sn_iteridx,
    sn_multinomial,
    sn_reduce,
    sn_select,
    sn_zipmapreduce,
)
from samba.utils import SNType as AtItsOtherHome
from tests.samba.session.loading import load


def _windows(
    source: torch.Tensor, indices: torch.Tensor, dims: list[int], lengths: list[int], batched: int
) -> torch.Tensor:
    """The definition of a gather, window by window."""
    places = indices.shape[:-1]
    sizes = [
        lengths[dims.index(d - batched)] if d - batched in dims else source.shape[d]
        for d in range(batched, source.dim())
    ]
    result = torch.zeros([*places, *sizes], dtype=source.dtype)
    for at in product(*map(range, places)):
        window = source[at[:batched]]
        for dim, length, start in zip(dims, lengths, indices[at].tolist(), strict=True):
            window = window.narrow(dim, min(max(start, 0), window.shape[dim] - length), length)
        result[at] = window
    return result


GATHERS: list[tuple[tuple[int, ...], tuple[int, ...], list[int], list[int], int]] = [
    ((5, 5), (3, 2), [0, 1], [2, 3], 0),
    ((7, 4), (2, 3, 1), [0], [1], 0),
    ((4, 6, 3), (5, 2), [2, 0], [2, 3], 0),
    ((4, 6, 3), (5, 1), [1], [2], 0),
    ((3, 8), (3, 4, 1), [0], [1], 1),
    ((3, 2, 8), (3, 2, 1, 1), [0], [1], 2),
    ((3, 5, 4), (3, 1), [0], [1], 1),
    ((3, 5, 4), (3, 6, 2), [1, 0], [2, 2], 1),
    ((6,), (1,), [0], [2], 0),
]


@pytest.mark.parametrize(("shape", "places", "dims", "lengths", "batched"), GATHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_gather_reads_windows(
    shape: tuple[int, ...],
    places: tuple[int, ...],
    dims: list[int],
    lengths: list[int],
    batched: int,
    dtype: torch.dtype,
) -> None:
    source = (torch.randn(shape) * 10).to(dtype)
    indices = torch.randint(-2, 9, places, dtype=torch.int32)
    made = sn_gather(source, indices, dims, lengths, batched_dims=batched)
    assert made.dtype == dtype
    assert torch.equal(made, _windows(source, indices, dims, lengths, batched))


def test_gather_shapes_of_the_documentation() -> None:
    def shape(source: Any, places: Any, dims: Any, lengths: Any, batched: int = 0) -> list[int]:
        index = torch.zeros(places, dtype=torch.int64)
        return list(sn_gather(torch.zeros(source), index, dims, lengths, batched).shape)

    assert shape((5, 5), (3, 2), [0, 1], [2, 3]) == [3, 2, 3]
    assert shape((16, 8), (2, 5, 1), [0], [1]) == [2, 5, 1, 8]
    assert shape((2, 9), (2, 9, 1), [0], [1], 1) == [2, 9, 1]
    assert shape((2, 3, 9), (2, 3, 1, 1), [0], [1], 2) == [2, 3, 1, 1]
    assert shape((2, 7, 4), (2, 1), [0], [1], 1) == [2, 1, 4]


def _scattered(
    operand: torch.Tensor,
    update: torch.Tensor,
    indices: torch.Tensor,
    dims: list[int],
    add: bool,
    batched: int,
) -> torch.Tensor:
    """The definition of a scatter, element by element."""
    result = operand.clone()
    places = indices.shape[:-1]
    for at in product(*map(range, places)):
        window = update[at]
        starts = dict(zip(dims, indices[at].tolist(), strict=True))
        for inner in product(*map(range, window.shape)):
            free = [starts.get(d, 0) + i for d, i in enumerate(inner)]
            sizes = operand.shape[batched:]
            if all(0 <= i < n for i, n in zip(free, sizes, strict=True)):
                target = (*at[:batched], *free)
                value = window[inner]
                result[target] = result[target] + value if add else value
    return result


SCATTERS: list[tuple[tuple[int, ...], tuple[int, ...], list[int], tuple[int, ...], int]] = [
    ((4, 6), (3, 2), [0, 1], (1, 1), 0),
    ((4, 6), (3, 2), [1, 0], (2, 2), 0),
    ((3, 8), (3, 5, 1), [0], (1,), 1),
    ((2, 3, 6, 4), (2, 1), [1], (3, 1, 4), 1),
    ((5, 3), (2, 2, 1), [0], (1, 3), 0),
]


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("shape", "places", "dims", "window", "batched"), SCATTERS)
def test_scatter_writes_windows(
    shape: tuple[int, ...],
    places: tuple[int, ...],
    dims: list[int],
    window: tuple[int, ...],
    batched: int,
    add: bool,
) -> None:
    operand = torch.randn(shape)
    indices = torch.randint(-1, 7, places)
    update = torch.randn([*places[:-1], *window])
    if not add:  # of windows that overlap one is taken, so give them one value
        update = torch.ones_like(update)
    before = operand.clone()
    made = sn_scatter(
        operand, update, indices, dims, "kAdd" if add else "kUpdate", batched_dims=batched
    )
    expected = _scattered(operand, update, indices, dims, add, batched)
    torch.testing.assert_close(made, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(operand, before)
    rmw = "kAdd" if add else "kUpdate"
    promised = sn_scatter(operand, update, indices, dims, rmw, True, batched_dims=batched)
    torch.testing.assert_close(promised, made, rtol=1e-6, atol=1e-6)


def test_scatter_drops_what_is_outside_and_casts_the_update() -> None:
    operand = torch.zeros(2, 4, dtype=torch.bfloat16)
    indices = torch.tensor([[[4], [1]], [[-1], [3]]])
    made = sn_scatter(operand, torch.ones(2, 2, 1), indices, [0], "kAdd", batched_dims=1)
    assert made.dtype == torch.bfloat16
    assert made.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_zipmapreduce_broadcasts_and_reduces() -> None:
    a, b = torch.randn(4, 1), torch.randn(1, 6)
    assert torch.equal(sn_zipmapreduce(lambda attrs, x, y: x + y, [a, b]), a + b)
    for name, function in {
        "ADD": torch.sum,
        "SUM": torch.sum,
        "MEAN": torch.mean,
        "MAX": torch.amax,
        "MIN": torch.amin,
    }.items():
        made = sn_zipmapreduce(lambda attrs, x, y: x * y, [a, b], name, 1)
        assert torch.equal(made, function(a * b, 1, keepdim=True)) and made.shape == (4, 1)
        at_random = sn_zipmapreduce(lambda attrs, x, y: x * y, [a, b], name, 1, stoc_accum=True)
        assert torch.equal(at_random, made)
        both = sn_zipmapreduce(lambda attrs, x, y: x * y, [a, b], name, [0, 1])
        assert both.shape == (1, 1)
    assert torch.equal(sn_reduce(b, "MIN", -1), b.amin(-1, keepdim=True))


def test_zipmapreduce_results_have_the_broadcast_shape() -> None:
    a, b = torch.randn(3, 1), torch.randn(4)
    one = sn_zipmapreduce(lambda attrs, x, y: sn_imm(1.0, torch.float32), [a, b])
    assert one.shape == (3, 4) and one.sum() == 12
    x, y = sn_zipmapreduce(lambda attrs, x, y: (x, y), [a, b], "ADD", 0)
    assert x.shape == y.shape == (1, 4) and torch.equal(y[0], b * 3)


def test_iteridx_counts_along_a_dimension() -> None:
    a, b = torch.zeros(3, 1), torch.zeros(1, 4)
    rows = sn_zipmapreduce(lambda attrs, x, y: sn_iteridx(attrs, 0) + 0 * (x + y).int(), [a, b])
    assert rows.dtype == torch.int32 and rows.tolist() == [[0] * 4, [1] * 4, [2] * 4]
    columns = sn_zipmapreduce(lambda attrs, x, y: sn_iteridx(attrs, -1, SNType.UINT16), [a, b])
    assert columns.tolist() == [[0, 1, 2, 3]] * 3
    typed = sn_zipmapreduce(lambda attrs, x, y: sn_iteridx(attrs, 1, torch.int64), [a, b])
    assert typed.dtype == torch.int64


def test_a_causal_mask_from_lambda_operations() -> None:
    scores = torch.randn(2, 5, 5)

    def mask(attrs: Any, x: torch.Tensor) -> torch.Tensor:
        keep = torch.ge(sn_iteridx(attrs, 1), sn_iteridx(attrs, 2))
        return sn_select(keep, x, sn_imm(-1e4, x.dtype))

    expected = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -1e4)
    assert torch.equal(sn_zipmapreduce(mask, [scores]), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_fma(dtype: torch.dtype) -> None:
    a, b, c = ((torch.randn(64) * 4).to(dtype) for _ in range(3))
    made = sn_zipmapreduce(lambda attrs, x, y, z: sn_fma(x, y, z), [a, b, c])
    wide = a.double() * b.double() + c.double()
    assert made.dtype == dtype
    torch.testing.assert_close(made, wide.to(dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("sn_type", "dtype"),
    [
        (SNType.INT32, torch.int32),
        (SNType.UINT16, torch.int32),
        (SNType.BF16, torch.bfloat16),
        (SNType.FP32, torch.float32),
        (SNType.BOOL, torch.bool),
    ],
)
def test_constants_and_types(sn_type: SNType, dtype: torch.dtype) -> None:
    assert SNType.to_torch_reference_type(sn_type) == dtype
    assert sn_imm(1, sn_type).dtype == dtype and sn_imm(1, dtype).dtype == dtype


def test_multinomial_inverts_the_distribution() -> None:
    probs = torch.tensor([[0.2, 0.0, 0.5, 0.3], [0.0, 2.0, 0.0, 2.0]])
    for randoms, expected in [
        ((0.0, 0.0), [0, 1]),
        ((0.19, 0.49), [0, 1]),
        ((0.21, 0.51), [2, 3]),
        ((0.99, 0.99), [3, 3]),
    ]:
        made = sn_multinomial(probs, torch.tensor(randoms)[:, None])
        assert made.shape == (2, 1) and made.flatten().tolist() == expected
    many = torch.arange(1000)[:, None] / 1000
    drawn = sn_multinomial(probs[:1].expand(1000, 4), many).flatten()
    assert torch.bincount(drawn, minlength=4).tolist() == [200, 0, 500, 300]


def test_the_patterns_are_at_all_their_homes() -> None:
    import samba.functional
    import samba.sn_private

    for name in stir.__all__:
        assert getattr(samba.functional, name) is getattr(stir, name)
        assert getattr(samba.sn_private, name) is getattr(stir, name)
        assert getattr(samba, name) is getattr(stir, name)
    assert AtItsOtherHome is SNType


I = torch.zeros(2, 1, dtype=torch.int64)  # noqa: E741  # an index
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: sn_gather(torch.ones(3), I, [0], [4]), "found 4 along dimension 0, expected 1 to 3"),
    (lambda: sn_gather(torch.ones(3), I, [0], [1, 1]), "one for each of the 1 gather_dims"),
    (lambda: sn_gather(torch.ones(3), I, [1], [1]), "dimensions from 0 to 0"),
    (lambda: sn_gather(torch.ones(3, 3), I, [0, 1], [1, 1]), "a last dimension of 2"),
    (lambda: sn_gather(torch.ones(3), I.float(), [0], [1]), "found torch.float32"),
    (lambda: sn_gather(torch.ones(3, 3), I, [0], [1], 1), "equal sizes in both"),
    (lambda: sn_scatter(torch.ones(3), torch.ones(2, 1), I, [0], "kMul"), "'kUpdate' or 'kAdd'"),
    (
        lambda: sn_scatter(torch.ones(3, 4), torch.ones(2, 1, 3), I, [0]),
        r"expected shape \[2, length, 4\]",
    ),
    (lambda: sn_zipmapreduce(lambda attrs: 1, []), "expected tensors, 1 or more"),
    (lambda: sn_zipmapreduce(lambda a, x: x, torch.ones(2)), "expected tensors, 1 or more, in a"),
    (lambda: sn_zipmapreduce(5, [torch.ones(2)]), r"sn_zipmapreduce\(func\): found int 5"),
    (lambda: sn_reduce(torch.ones(2), "ADD", 0.5), r"reduce_dim\): found float 0.5"),
    (lambda: sn_zipmapreduce(lambda attrs, x: 1, [torch.ones(2)]), "a result of type int"),
    (lambda: sn_zipmapreduce(lambda a, x: x, [torch.ones(2)], "OR", 0), "one of ADD, SUM"),
    (lambda: sn_zipmapreduce(lambda a, x: x, [torch.ones(2)], "ADD"), "one or more dimensions"),
    (lambda: sn_zipmapreduce(lambda a, x: x, [torch.ones(2)], "ADD", 1), "from 0 to 0"),
    (lambda: sn_zipmapreduce(lambda a, x: sn_iteridx(a, 1), [torch.ones(2)]), r"iteridx\(dim\)"),
    (lambda: sn_multinomial(torch.ones(2, 3), torch.ones(2)), r"expected \[n, V\] and \[n, 1\]"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call()


def test_shapes_that_do_not_broadcast_keep_the_text_of_torch() -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        sn_zipmapreduce(lambda attrs, x, y: x, [torch.ones(2), torch.ones(3)])


class Patterns(nn.Module):
    """Every pattern in one model, with a loss that depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 4))
        self.bias = nn.Parameter(torch.randn(1, 4))

    def forward(
        self, rows: torch.Tensor, place: torch.Tensor, randoms: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        looked_up = sn_gather(self.table, rows[..., None], [0], [1]).squeeze(-2)

        def mix(attrs: Any, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            position = sn_iteridx(attrs, 1, SNType.UINT16).to(x.dtype)
            keep = torch.le(sn_iteridx(attrs, 1), sn_imm(2, SNType.INT32))
            return sn_select(keep, sn_fma(x, b, position), sn_imm(0.5, x.dtype))

        mixed = sn_zipmapreduce(mix, [looked_up, self.bias])
        cache = sn_scatter(mixed, looked_up[:, :1], place, [0], batched_dims=1)
        counts = sn_scatter(
            mixed, looked_up[:, :, None], rows[..., None], [0], "kAdd", batched_dims=1
        )
        least = sn_reduce(counts, "MIN", 1)
        drawn = sn_multinomial(cache[:, 0].softmax(-1), randoms)
        return cache.square().mean() + least.sum(), cache, counts, drawn


def test_patterns_on_the_device_with_gradients(tmp_path: Path) -> None:
    model = Patterns()
    inputs = (
        samba.randint(7, (3, 5), name="rows", dtype=torch.int32),
        samba.from_torch_tensor(torch.tensor([[1], [4], [5]]), name="place"),
        samba.rand(3, 1, name="randoms"),
    )
    plain = [t.torch() for t in inputs]
    expected = model(*plain)
    expected[0].backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    samba.from_torch_model_(model)
    results = samba.session.run(inputs, load(model, inputs, tmp_path))
    for made, want in zip(results, expected, strict=True):
        torch.testing.assert_close(made.torch(), want.detach(), rtol=1e-6, atol=1e-6)
    for parameter, want in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.sn_grad, want, rtol=1e-5, atol=1e-6)
    assert len(grads) == 2


def test_patterns_take_sambatensors_eagerly() -> None:
    table = samba.randn(5, 3, name="table")
    made = sn_gather(table, samba.from_torch_tensor(torch.tensor([[4]])), [0], [1])
    assert isinstance(made, samba.SambaTensor) and torch.equal(made[0, 0].torch(), table[4].torch())
