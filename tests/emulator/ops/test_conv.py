"""Convolutions against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from emulator.kernels import conv_by_xla, convolutions
from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

Shape = tuple[int, ...]


def randn(*shapes: Shape) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(s, generator=generator) for s in shapes]


CASES: list[tuple[Shape, Shape, tuple[Any, ...]]] = [
    ((2, 3, 9), (4, 3, 3), ()),
    ((3, 9), (4, 3, 3), ([2], [1])),
    ((2, 4, 8, 7), (6, 4, 3, 2), ([1, 1], [1, 0])),
    ((2, 4, 8, 7), (6, 2, 3, 3), ([2], [1], [2], 2)),
    ((2, 4, 8, 8), (8, 1, 3, 3), ([1, 1], [1, 1], [1, 1], 4)),
    ((4, 8, 8), (6, 4, 1, 1), ([2, 2],)),
    ((2, 4, 9, 9), (3, 4, 3, 3), ([3, 2], [2, 2])),
    ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), ([1, 2, 1], [0, 1, 1])),
]


@cases(("x", "w", "args"), CASES, every=2)
def test_conv(x: Shape, w: Shape, args: tuple[Any, ...]) -> None:
    check(f"aten.conv{len(w) - 2}d.default", *randn(x, w, (w[0],)), *args)


@cases(("x", "w", "args"), CASES[3:6])
def test_large_conv(
    x: Shape, w: Shape, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way to the weight gradient: XLA's convolution, for data too large to stack."""
    monkeypatch.setattr(convolutions, "_STACKED", 0)
    check("aten.conv2d.default", *randn(x, w), None, *args)


ROWS: list[tuple[Shape, Shape, tuple[Any, ...]]] = [
    ((16, 3, 9), (4, 3, 3), ([3], [1])),
    ((16, 4, 8, 7), (6, 4, 3, 2), ([2, 1], [1, 0], [2, 3])),
    ((17, 2, 7, 6), (3, 2, 2, 2), ([3, 4],)),
    ((16, 2, 4, 3, 4), (3, 2, 2, 3, 2), ([1, 2, 1], [0, 1, 1])),
]
"""Batches so large that the input gradient is added row by row; some places get nothing."""


@cases(("x", "w", "args"), ROWS)
def test_conv_of_a_batch(x: Shape, w: Shape, args: tuple[Any, ...]) -> None:
    assert x[0] >= conv_by_xla._ROW
    check(f"aten.conv{len(w) - 2}d.default", *randn(x, w, (w[0],)), *args)


def test_named_padding() -> None:
    for x, w, dilation in (((2, 3, 9), (4, 3, 4), [2]), ((1, 2, 6, 7), (3, 2, 3, 2), [1])):
        for padding in ("same", "valid"):
            name = f"aten.conv{len(w) - 2}d.padding"
            check(name, *randn(x, w, (w[0],)), [1], padding, dilation)
    check("aten.conv2d.padding", *randn((1, 2, 6, 7), (3, 2, 3, 2)))


TRANSPOSED: list[tuple[str, Shape, Shape, tuple[Any, ...]]] = [
    ("conv_transpose1d.default", (2, 4, 5), (4, 3, 3), ()),
    ("conv_transpose1d.default", (4, 5), (4, 3, 4), ([3], [1], [2])),
    ("conv_transpose2d.input", (2, 4, 5, 4), (4, 3, 3, 2), ([2, 1], [1, 0], [1, 0])),
    ("conv_transpose2d.input", (2, 4, 5, 4), (4, 3, 3, 3), ([2], [2], [1], 2, [2])),
    ("conv_transpose3d.input", (1, 2, 3, 4, 3), (2, 3, 2, 2, 2), ([2],)),
]


@cases(("name", "x", "w", "args"), TRANSPOSED, every=2)
def test_conv_transpose(name: str, x: Shape, w: Shape, args: tuple[Any, ...]) -> None:
    groups = args[3] if len(args) > 3 else 1
    check(f"aten.{name}", *randn(x, w, (w[1] * groups,)), *args)


def test_other_names_and_types() -> None:
    x, w, b = randn((2, 4, 6, 6), (4, 4, 3, 3), (4,))
    check("aten.convolution.default", x, w, b, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    check("aten.convolution.default", x, w, b, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)
    check("aten.conv2d.default", *(t.double() for t in randn((2, 3, 6, 6), (4, 3, 3, 3))))
    check_narrow("aten.conv2d.default", *randn((2, 3, 6, 6), (4, 3, 3, 3), (4,)))
    check_narrow("aten.conv_transpose2d.input", *randn((2, 3, 6, 6), (3, 4, 3, 3)), None, [2])


@cases("output", [[1], [2]])
@cases("padding", [[0], [1], [3]], every=2)
@cases(("stride", "dilation"), [([1], [3]), ([2], [3]), ([3], [1])], every=2)
def test_output_padding_within_padding(
    stride: list[int], padding: list[int], output: list[int], dilation: list[int]
) -> None:
    """What is added at the end is not zeros where padding had cut values off."""
    x, w, b = randn((2, 4, 4, 5), (4, 3, 2, 3), (3,))
    check("aten.conv_transpose2d.input", x, w, b, stride, padding, output, 1, dilation)


def test_output_padding_of_one_place() -> None:
    x, w, b = randn((2, 4, 4, 1), (4, 3, 2, 3), (3,))
    for output in ([1], [2]):
        check("aten.conv_transpose2d.input", x, w, b, [3], [0], output, 1, [3])


@cases("groups", [1, 2, 4], every=2)
def test_integers(groups: int) -> None:
    """Exact, and jax has no transposition of integers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (2, 4, 5, 6), generator=generator, dtype=torch.int64)
    w = torch.randint(-9, 9, (4, 3, 2, 3), generator=generator, dtype=torch.int64)
    args = ([2, 1], [1], [1, 0], groups, [2, 1])
    check("aten.conv_transpose2d.input", x, w, None, *args, grad=False)
    w = torch.randint(-9, 9, (8, 4 // groups, 2, 3), generator=generator, dtype=torch.int64)
    check("aten.conv2d.default", x, w, None, [2, 1], [1], [2, 1], groups, grad=False)
