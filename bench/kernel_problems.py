"""What ``python -m bench kernels`` times: products, convolutions and recurrent layers.

They have the shapes of layers that people train.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from emulator.kernels.problems import Convolution, Part, Product
from emulator.kernels.windows import Window
from emulator.native.recurrence import Cell

_ROWS = (1, 8, 32, 96, 256, 1024, 4096)
_LAYERS = (
    *((64, 64), (64, 256), (256, 64), (128, 128), (256, 10), (256, 120), (784, 128)),
    *((128, 512), (256, 1024), (512, 2048), (384, 384), (384, 1536), (1536, 384)),
    *((768, 768), (1024, 1000), (1024, 1024), (384, 8192), (512, 5000), (27, 64), (576, 64)),
)
"""Input and output features of linear layers."""

_HEADS = tuple(itertools.product((8, 24, 96, 384), (16, 64, 128, 256, 512), (32, 64)))
"""Heads of all sequences together, their length, and features of a head."""

_MOST = 15 * 10**9
"""Floating point operations of the largest problem: half a second on a slow core."""

_IMAGES = (
    # images, channels, size, features, kernel, stride, groups
    *((32, 1, 28, 6, 5, 1, 1), (32, 6, 12, 16, 5, 1, 1), (256, 1, 28, 6, 5, 1, 1)),
    *((1, 1, 28, 6, 5, 1, 1), (1, 6, 12, 16, 5, 1, 1), (256, 6, 12, 16, 5, 1, 1)),
    *((32, 3, 32, 64, 3, 1, 1), (8, 3, 64, 16, 3, 1, 1), (8, 3, 64, 32, 3, 2, 1)),
    *((4, 16, 64, 16, 3, 1, 1), (4, 32, 64, 32, 3, 1, 1), (4, 32, 32, 64, 3, 1, 1)),
    *((8, 128, 16, 64, 3, 1, 1), (8, 64, 64, 32, 3, 1, 1), (8, 192, 32, 64, 3, 1, 1)),
    *((32, 64, 32, 64, 3, 1, 1), (32, 128, 16, 128, 3, 1, 1), (32, 256, 8, 256, 3, 1, 1)),
    *((32, 512, 4, 512, 3, 1, 1), (32, 64, 32, 128, 3, 2, 1), (32, 128, 16, 256, 3, 2, 1)),
    *((32, 256, 8, 512, 3, 2, 1), (8, 64, 32, 64, 3, 2, 1), (4, 3, 64, 64, 7, 2, 1)),
    *((32, 64, 32, 128, 1, 2, 1), (32, 128, 16, 256, 1, 2, 1), (32, 256, 8, 512, 1, 2, 1)),
    *((16, 64, 32, 128, 1, 1, 1), (16, 32, 32, 192, 1, 1, 1), (16, 192, 32, 32, 1, 1, 1)),
    *((16, 256, 8, 512, 1, 1, 1), (4, 64, 64, 10, 1, 1, 1), (8, 3, 32, 128, 4, 4, 1)),
    *((16, 128, 8, 64, 4, 2, 1), (16, 64, 16, 128, 4, 2, 1), (16, 32, 32, 64, 4, 2, 1)),
    *((16, 3, 64, 32, 4, 2, 1), (16, 256, 4, 128, 4, 2, 1), (4, 32, 32, 32, 2, 2, 1)),
    *((8, 16, 64, 32, 2, 2, 1), (8, 32, 32, 64, 2, 2, 1), (4, 3, 224, 768, 16, 16, 1)),
    *((16, 32, 32, 32, 3, 1, 32), (16, 128, 16, 128, 3, 1, 128), (16, 64, 32, 64, 3, 2, 64)),
    *((16, 256, 8, 256, 3, 1, 256), (8, 96, 16, 96, 7, 1, 96), (16, 128, 16, 128, 3, 2, 128)),
    *((16, 64, 16, 64, 3, 1, 8), (16, 128, 16, 128, 3, 1, 32)),
)
_SEQUENCES = (
    # sequences, channels, length, features, kernel, dilation, groups
    *((8, 1, 1024, 32, 2, 1, 1), (8, 32, 1024, 32, 2, 1, 1), (8, 32, 1024, 64, 2, 8, 1)),
    *((8, 32, 1024, 32, 3, 4, 1), (8, 64, 512, 64, 3, 1, 1), (16, 64, 256, 128, 5, 1, 1)),
    *((8, 32, 1024, 64, 1, 1, 1), (8, 64, 1024, 256, 1, 1, 1), (8, 64, 512, 64, 3, 64, 1)),
    *((8, 64, 256, 64, 3, 1, 64), (8, 256, 128, 256, 5, 1, 256)),
)
_VOLUMES = ((2, 1, 16, 8, 3, 1, 1), (2, 8, 16, 16, 3, 1, 1), (2, 16, 16, 32, 3, 2, 1))

_RECURRENT = (
    # steps, sequences, inputs, width
    *((20, 2, 32, 64), (20, 4, 128, 1024), (24, 16, 512, 512)),
    *((64, 64, 64, 64), (64, 128, 128, 256), (200, 8, 32, 32)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A recurrent layer in one direction, with all of its gradients.

    Args:
        cell: What a step does.
        dtype: Name of the dtype of data and weights.
        steps, batch, inputs, width: Data are ``(steps, batch, inputs)``, states ``(batch, width)``.
    """

    cell: Cell
    dtype: str
    steps: int
    batch: int
    inputs: int
    width: int

    @property
    def gates(self) -> int:
        """Rows of its weights."""
        return self.cell.gates * self.width

    @property
    def operations(self) -> int:
        """Floating point operations of its products: each has two gradients."""
        return 6 * self.steps * self.batch * self.gates * (self.inputs + self.width)


Problem = Product | Convolution | Recurrence


def padding(kernel: int, stride: int, dilation: int) -> int:
    """Elements before and after an axis: half of a window's reach, none where they do not overlap.

    Args:
        kernel, stride, dilation: Along the axis.

    Example:
        >>> padding(3, 1, 2), padding(4, 4, 1)
        (2, 0)
    """
    return 0 if kernel == stride else dilation * (kernel - 1) // 2


def product_problems() -> Iterator[Product]:
    """Products of linear layers and of attention, forward and of both gradients."""
    for dtype in ("float32", "bfloat16"):
        for rows, (i, o) in itertools.product(_ROWS, _LAYERS):
            if 2 * rows * i * o > _MOST:
                continue
            for m, k, n, a, b in (
                (rows, i, o, False, True),
                (rows, o, i, False, False),
                (o, rows, i, True, False),
            ):
                yield Product(dtype=dtype, turned_a=a, turned_b=b, batch=1, m=m, k=k, n=n)
        for batch, t, d in _HEADS:
            if 2 * batch * t * t * d > _MOST // 4:
                continue
            for m, k, n, a, b in (
                (t, d, t, False, True),
                (t, t, d, False, False),
                (t, t, d, True, False),
            ):
                yield Product(dtype=dtype, turned_a=a, turned_b=b, batch=batch, m=m, k=k, n=n)


def convolution_problems() -> Iterator[Convolution]:
    """Convolutions over one, two and three axes, forward and both gradients."""
    shapes = [(2, *row[:6], 1, row[6]) for row in _IMAGES]
    shapes += [(1, *row[:5], 1, *row[5:]) for row in _SEQUENCES]
    shapes += [(3, *row[:6], 1, row[6]) for row in _VOLUMES]
    for n, batch, channels, size, features, kernel, stride, dilation, groups in shapes:
        side = padding(kernel, stride, dilation)
        window = Window(
            kernel=(kernel,) * n,
            stride=(stride,) * n,
            dilation=(dilation,) * n,
            low=(side,) * n,
            high=(side,) * n,
            out=((size + 2 * side - dilation * (kernel - 1) - 1) // stride + 1,) * n,
        )
        data, kernels = (batch, channels, *(size,) * n), (features, channels // groups)
        for part in Part:
            yield Convolution.of(part, "float32", data, (*kernels, *window.kernel), window, groups)


def recurrence_problems() -> Iterator[Recurrence]:
    """Recurrent layers of all cells but ReLU's, which takes as long as tanh's."""
    cells = (Cell.LSTM, Cell.GRU, Cell.TANH)
    for dtype, shape, cell in itertools.product(("float32", "bfloat16"), _RECURRENT, cells):
        steps, batch, inputs, width = shape
        yield Recurrence(
            cell=cell, dtype=dtype, steps=steps, batch=batch, inputs=inputs, width=width
        )


def title(p: Problem) -> str:
    """Describe a problem in one line.

    Example:
        >>> shape = {"turned_a": False, "turned_b": True, "batch": 1, "m": 8, "k": 2, "n": 3}
        >>> title(Product(dtype="float32", **shape))
        'product float32 nt 1x8x2x3'
    """
    if isinstance(p, Product):
        form = "".join("t" if turned else "n" for turned in (p.turned_a, p.turned_b))
        return f"product {p.dtype} {form} {p.batch}x{p.m}x{p.k}x{p.n}"
    if isinstance(p, Recurrence):
        sizes = "x".join(map(str, (p.steps, p.batch, p.inputs, p.width)))
        return f"recurrence {p.dtype} {p.cell.name.lower()} {sizes}"
    w = p.window
    sizes = "x".join(map(str, (p.batch, *p.size, p.channels, p.features)))
    part = p.part.name.lower().replace("_", " ")
    rest = f"kernel {w.kernel[0]} stride {w.stride[0]} dilation {w.dilation[0]} groups {p.groups}"
    return f"convolution {len(p.size)}d {part} {sizes} {rest}"


def kinds(text: str) -> list[Problem]:
    """Problems of this file whose titles hold a text.

    Args:
        text: A part of :func:`title`.

    Example:
        >>> {p.part.name for p in kinds("2d weight gradient")}
        {'WEIGHT_GRADIENT'}
    """
    every: list[Problem] = [*convolution_problems(), *product_problems(), *recurrence_problems()]
    return [problem for problem in every if text in title(problem)]
