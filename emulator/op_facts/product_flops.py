"""Products of each op: matrix products and convolutions, forward and in the gradient.

A product of ``(m, k)`` and ``(k, n)`` is ``2 * m * k * n`` floating point operations, as torch's
counter has it; a convolution is the product of its windows, those at the rim counted in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from emulator.op_facts.fused_products import attention, cell, recurrent
from emulator.op_facts.multi_dot import cheapest_order
from emulator.op_facts.node_arguments import NamedArgs, Shape
from emulator.op_facts.products import Part, Products, aligned, at_positions, each
from emulator.op_facts.table import facts_of
from pef_schema.program import Gradient, Graph, Node

__all__ = ["products_of"]


def products_of(graph: Graph | Gradient, node: Node) -> Products | None:
    """The products of a node.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node.

    Returns:
        The products; None for an op that has none, or of which nobody has said what it takes.
    """
    kind = facts_of(node.op).products
    return None if kind is None else _FORMULAS[kind](NamedArgs(graph, node))


# -- products of matrices ---------------------------------------------------


def _matmul_flops(a: Shape, b: Shape) -> int:
    """Operations of ``torch.matmul``: vectors, matrices, and batches that broadcast.

    Example:
        >>> _matmul_flops((2, 3), (3, 4)), _matmul_flops((5, 1, 2, 3), (7, 3, 4))
        (48, 1680)
    """
    rows = a[-2] if len(a) > 1 else 1
    columns = b[-1] if len(b) > 1 else 1
    lead = [max(i, j) if i and j else 0 for i, j in aligned(a[:-2], b[:-2])]
    return 2 * math.prod(lead) * rows * (a[-1] if a else 1) * columns


def _matmul(at: NamedArgs) -> Products:
    return each(_matmul_flops(at.shape(0), at.shape(1)), at.dtype(0), (0, 0), (1, 0))


def _added_matmul(at: NamedArgs) -> Products:
    return each(_matmul_flops(at.shape(1), at.shape(2)), at.dtype(1), (1, 0), (2, 0))


def _linear(at: NamedArgs) -> Products:
    weight = at.shape(1)
    flops = 2 * math.prod(at.shape(0)) * (weight[0] if len(weight) > 1 else 1)
    return each(flops, at.dtype(0), (0, 0), (1, 0))


def _inner(at: NamedArgs) -> Products:
    a, b = at.shape(0), at.shape(1)
    flops = 2 * math.prod(a) * math.prod(b[:-1]) if a and b else 0
    return each(flops, at.dtype(0), (0, 0), (1, 0))


def _tensordot(at: NamedArgs) -> Products:
    dims = at.given(3)
    b = at.shape(1)
    summed = {d % len(b) for d in (dims if isinstance(dims, tuple) else ()) if isinstance(d, int)}
    columns = math.prod(n for i, n in enumerate(b) if i not in summed)
    return each(2 * math.prod(at.shape(0)) * columns, at.dtype(0), (0, 0), (1, 0))


def _einsum(at: NamedArgs) -> Products | None:
    """Of two operands; nobody has said in which order more of them are multiplied."""
    shapes, equation = at.shapes(1), at.given(0)
    if len(shapes) == 1:
        return Products(forward=0, gradient=(), operand=at.dtype(1))
    if len(shapes) != 2 or not isinstance(equation, str):
        return None
    flops = 2 * math.prod(_einsum_sizes(equation, shapes).values())
    return each(flops, at.dtype(1), (1, 0), (1, 1))


def _einsum_sizes(equation: str, shapes: Sequence[Shape]) -> dict[str, int]:
    """Sizes of an equation's axes; those that dots stand for are numbered from the last.

    Example:
        >>> _einsum_sizes("...i,ij->...j", [(5, 2), (2, 3)])
        {'i': 2, '.0': 5, 'j': 3}
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(
        equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True
    ):
        before, dots, after = term.partition("...")
        spare = len(shape) - len(before) - len(after) if dots else 0
        end = len(shape) - len(after)
        named = [*zip(before, shape, strict=False), *zip(after, shape[end:], strict=True)]
        named += [(f".{i}", shape[end - 1 - i]) for i in range(spare)]
        for name, size in named:
            sizes[name] = max(size, sizes.get(name, 1)) if size else 0
    return sizes


def _bilinear(at: NamedArgs) -> Products:
    x1, x2, weight = at.shape(0), at.shape(1), at.shape(2)
    half = 2 * math.prod(x1) * weight[0] * weight[2]
    second = 2 * math.prod(x2) * weight[0]
    return Products(
        forward=half + second,
        gradient=(
            Part(wanted=at_positions(1), flops=second),
            Part(wanted=at_positions(0, 2), flops=second),
            Part(wanted=at_positions(0), flops=half),
            Part(wanted=at_positions(2), flops=half),
        ),
        again=half if (1, 0) in at.wanted() else 0,
        operand=at.dtype(0),
    )


def _grouped(at: NamedArgs) -> Products:
    """Each row times the matrix of its group; what pads the groups is not counted."""
    a, b = at.shape(0), at.shape(1)
    both = len(a) == 3 and len(b) == 3
    flops = _matmul_flops(a, b) if both else 2 * math.prod(a[-2:]) * b[-1]
    return each(flops, at.dtype(0), (0, 0), (1, 0))


def _multi_dot(at: NamedArgs) -> Products:
    chain = cheapest_order(at.shapes(0))
    parts: list[Part] = []
    for step in chain.steps:
        for side in (step.left, step.right):
            parts.append(Part(wanted=frozenset((0, i) for i in side), flops=step.flops))
    total = sum(step.flops for step in chain.steps)
    last = chain.steps[-1].flops if chain.steps else 0
    return Products(forward=total, gradient=tuple(parts), again=total - last, operand=at.dtype(0))


# -- convolutions -----------------------------------------------------------


def _conv_flops(x: Shape, weight: Shape, out: Shape, transposed: bool) -> int:
    """Operations of a convolution of ``(N, C, ...)`` or ``(C, ...)``.

    Each place of the result takes a window of the data; where it is transposed, each place of the
    data gives one.

    Example:
        >>> _conv_flops((1, 1, 28, 28), (6, 1, 5, 5), (1, 6, 24, 24), False)
        172800
    """
    spatial = len(weight) - 2
    places = (x if transposed else out)[-spatial:] if spatial else ()
    batch = x[0] if len(x) == spatial + 2 else 1
    return 2 * batch * math.prod(places) * math.prod(weight)


def _conv(at: NamedArgs) -> Products:
    flops = _conv_flops(at.shape(0), at.shape(1), at.result, False)
    return each(flops, at.dtype(0), (0, 0), (1, 0))


def _conv_transpose(at: NamedArgs) -> Products:
    flops = _conv_flops(at.shape(0), at.shape(1), at.result, True)
    return each(flops, at.dtype(0), (0, 0), (1, 0))


def _convolution(at: NamedArgs) -> Products:
    flops = _conv_flops(at.shape(0), at.shape(1), at.result, at.given(6) is True)
    return each(flops, at.dtype(0), (0, 0), (1, 0))


_FORMULAS: Mapping[str, Callable[[NamedArgs], Products | None]] = MappingProxyType(
    {
        "matmul": _matmul,
        "added_matmul": _added_matmul,
        "linear": _linear,
        "inner": _inner,
        "tensordot": _tensordot,
        "einsum": _einsum,
        "bilinear": _bilinear,
        "grouped": _grouped,
        "multi_dot": _multi_dot,
        "conv": _conv,
        "conv_transpose": _conv_transpose,
        "convolution": _convolution,
        "attention": attention,
        "recurrent": recurrent,
        "cell": cell,
    }
)
"""By the name that an op's facts give."""
