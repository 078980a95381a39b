"""Products of each op: matrix products and convolutions, forward and in the gradient.

A product of ``(m, k)`` and ``(k, n)`` is ``2 * m * k * n`` floating point operations, as torch's
counter has it; a convolution is the product of its windows, those at the rim counted in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

from emulator.op_facts.node_arguments import NamedArgs, Place, Shape
from emulator.op_facts.table import facts_of
from pef_schema.program import DType, Gradient, Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One product of a gradient.

    Args:
        wanted: It is computed where one of these arguments wants a gradient.
        flops: What it takes.
    """

    wanted: frozenset[Place]
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products of one node.

    Args:
        forward: What those of the node itself take.
        gradient: Those of its gradient.
        again: What those take that the gradient needs results of, where they were not kept: it
            computes them again, unless the node runs in the same executable.
        operand: Type of what is multiplied.
    """

    forward: int
    gradient: tuple[Part, ...]
    again: int = 0
    operand: DType


def _at_positions(*positions: int) -> frozenset[Place]:
    """Places of arguments that are tensors themselves."""
    return frozenset((position, 0) for position in positions)


def _each(flops: int, operand: DType, *places: Place) -> Products:
    """A product with a gradient for each of its factors, of the same size."""
    parts = tuple(Part(wanted=frozenset({place}), flops=flops) for place in places)
    return Products(forward=flops, gradient=parts, operand=operand)


def _aligned(a: Shape, b: Shape) -> list[tuple[int, int]]:
    """Sizes of two shapes that broadcast, the last axes first.

    Example:
        >>> _aligned((5, 1), (7,))
        [(1, 7), (5, 1)]
    """
    return list(zip_longest(reversed(a), reversed(b), fillvalue=1))


def gradient_flops_of(products: Products, places: Collection[Place]) -> int:
    """What the products of a gradient take.

    Args:
        products: Those of the node.
        places: Where arguments stand that want a gradient.
    """
    return sum(part.flops for part in products.gradient if not part.wanted.isdisjoint(places))


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
    lead = [max(i, j) if i and j else 0 for i, j in _aligned(a[:-2], b[:-2])]
    return 2 * math.prod(lead) * rows * (a[-1] if a else 1) * columns


def _matmul(at: NamedArgs) -> Products:
    return _each(_matmul_flops(at.shape(0), at.shape(1)), at.dtype(0), (0, 0), (1, 0))


def _added_matmul(at: NamedArgs) -> Products:
    return _each(_matmul_flops(at.shape(1), at.shape(2)), at.dtype(1), (1, 0), (2, 0))


def _linear(at: NamedArgs) -> Products:
    weight = at.shape(1)
    flops = 2 * math.prod(at.shape(0)) * (weight[0] if len(weight) > 1 else 1)
    return _each(flops, at.dtype(0), (0, 0), (1, 0))


def _inner(at: NamedArgs) -> Products:
    a, b = at.shape(0), at.shape(1)
    flops = 2 * math.prod(a) * math.prod(b[:-1]) if a and b else 0
    return _each(flops, at.dtype(0), (0, 0), (1, 0))


def _tensordot(at: NamedArgs) -> Products:
    dims, b = at.argument(3), at.shape(1)
    dims = dims if isinstance(dims, tuple) and b else ()
    summed = {d % len(b) for d in dims if isinstance(d, int)}
    columns = math.prod(n for i, n in enumerate(b) if i not in summed)
    return _each(2 * math.prod(at.shape(0)) * columns, at.dtype(0), (0, 0), (1, 0))


def _einsum(at: NamedArgs) -> Products | None:
    """Of two operands; nobody has said in which order more of them are multiplied."""
    shapes, equation = at.shapes(1), at.argument(0)
    if len(shapes) == 1:
        return Products(forward=0, gradient=(), operand=at.dtype(1))
    if len(shapes) != 2 or not isinstance(equation, str):
        return None
    flops = 2 * math.prod(_einsum_sizes(equation, shapes).values())
    return _each(flops, at.dtype(1), (1, 0), (1, 1))


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
            Part(wanted=_at_positions(1), flops=second),
            Part(wanted=_at_positions(0, 2), flops=second),
            Part(wanted=_at_positions(0), flops=half),
            Part(wanted=_at_positions(2), flops=half),
        ),
        again=half if (1, 0) in at.wanted() else 0,
        operand=at.dtype(0),
    )


def _grouped(at: NamedArgs) -> Products:
    """Each row times the matrix of its group; what pads the groups is not counted."""
    a, b = at.shape(0), at.shape(1)
    both = len(a) == 3 and len(b) == 3
    flops = _matmul_flops(a, b) if both else 2 * math.prod(a[-2:]) * b[-1]
    return _each(flops, at.dtype(0), (0, 0), (1, 0))


def _multi_dot(at: NamedArgs) -> Products:
    steps = _cheapest_order(at.shapes(0))
    parts: list[Part] = []
    for step in steps:
        for side in (step.left, step.right):
            parts.append(Part(wanted=frozenset((0, i) for i in side), flops=step.flops))
    total = sum(step.flops for step in steps)
    last = steps[-1].flops if steps else 0
    return Products(forward=total, gradient=tuple(parts), again=total - last, operand=at.dtype(0))


# -- chains of matrices ------------------------------------------------------

_MOST_MATRICES = 128
"""Matrices of a chain whose order is found: the time grows with the cube."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChainStep:
    """One product of a chain.

    Args:
        left, right: Matrices of the chain that its factors are made of.
        flops: What it takes.
    """

    left: range
    right: range
    flops: int


def _cheapest_order(shapes: Sequence[tuple[int, ...]]) -> tuple[_ChainStep, ...]:
    """The products of a chain: the matrix chain algorithm.

    Args:
        shapes: Of the matrices; the first and the last may be vectors.

    Returns:
        The products, the last one last.

    Raises:
        ValueError: For so many matrices that finding the order would take longer than a moment.

    Example:
        >>> [step.flops for step in _cheapest_order([(10, 2), (2, 30), (30, 3)])]
        [360, 120]
    """
    matrices = [(1, *s) if i == 0 and len(s) == 1 else s for i, s in enumerate(shapes)]
    if len(matrices) > 1 and len(matrices[-1]) == 1:
        matrices[-1] = (*matrices[-1], 1)
    if not matrices:
        return ()
    if len(matrices) > _MOST_MATRICES:
        raise ValueError(
            f"a chain of {len(matrices)} matrices, of {_MOST_MATRICES} the order is found"
        )
    sizes = [matrices[0][0], *(m[1] for m in matrices)]
    split = chain_splits(sizes)
    steps: list[_ChainStep] = []

    def visit(i: int, j: int) -> None:
        if i == j:
            return
        k = split[i, j]
        visit(i, k)
        visit(k + 1, j)
        steps.append(
            _ChainStep(
                left=range(i, k + 1),
                right=range(k + 1, j + 1),
                flops=2 * sizes[i] * sizes[k + 1] * sizes[j + 1],
            )
        )

    visit(0, len(matrices) - 1)
    return tuple(steps)


def chain_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each part of a chain, so that the fewest multiplications are left.

    Args:
        sizes: Rows of each matrix in turn, and the columns of the last.

    Returns:
        By first and last matrix of a part: the last matrix of its left half.

    Example:
        >>> chain_splits([10, 2, 30, 3])[0, 2]
        0
    """
    n = len(sizes) - 1
    cost = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            ways = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], split[i, j] = min(ways)
    return split


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


def _convolution(transposed: bool | None = None) -> Callable[[NamedArgs], Products]:
    """A convolution; where it is not said, an argument says whether it is transposed."""

    def of(at: NamedArgs) -> Products:
        back = at.argument(6) is True if transposed is None else transposed
        flops = _conv_flops(at.shape(0), at.shape(1), at.result, back)
        return _each(flops, at.dtype(0), (0, 0), (1, 0))

    return of


# -- ops of several products ---------------------------------------------------


def _attention(at: NamedArgs) -> Products:
    """Two products, four in the gradient; what a causal mask hides is computed, and counted.

    The gradient reads the softmax, which no section keeps: it makes the scores again.
    """
    q, k, v = at.shape(0), at.shape(1), at.shape(2)
    lead = math.prod(max(i, j) if i and j else 0 for i, j in _aligned(q[:-2], k[:-2]))
    if at.argument(-1, "enable_gqa") is True:
        lead = math.prod(q[:-2])
    pairs = 2 * lead * q[-2] * k[-2]
    scores, mixed = pairs * q[-1], pairs * v[-1]
    return Products(
        forward=scores + mixed,
        gradient=(
            Part(wanted=_at_positions(0, 1, 3), flops=mixed),
            Part(wanted=_at_positions(2), flops=mixed),
            Part(wanted=_at_positions(0), flops=scores),
            Part(wanted=_at_positions(1), flops=scores),
        ),
        again=scores,
        operand=at.dtype(0),
    )


def _recurrent(at: NamedArgs) -> Products:
    """Layers over time: for each, the product with its inputs and that with its states.

    The gradient of the state goes from step to step, so one product a step; that of the first
    state is counted where somebody wants it.
    """
    x, biased = at.shape(0), at.argument(3) is True
    layers = at.argument(4)
    directions = 2 if at.argument(7) is True else 1
    projected = at.is_projected
    count = (4 if biased else 2) + projected
    params = at.shapes(2)
    steps, batch = (x[1], x[0]) if at.argument(8) is True else (x[0], x[1])
    forward, parts = 0, list[Part]()
    below: set[Place] = {(0, 0)}
    """What the inputs of a layer come from."""
    for layer in range(min(layers, len(params)) if isinstance(layers, int) else 0):
        here = set[Place]()
        for direction in range(directions):
            first = (layer * directions + direction) * count
            if first + 1 >= len(params):
                break
            gates, features = params[first]
            hidden = params[first + 1][1]
            of_inputs = 2 * steps * batch * features * gates
            of_one = 2 * batch * hidden * gates
            of_projection = 0
            if projected and first + count <= len(params):
                of_projection = 2 * batch * math.prod(params[first + count - 1])
            forward += of_inputs + steps * (of_one + of_projection)
            own = {(2, first + i) for i in range(count)}
            starts = {(1, item) for item in range(max(len(at.shapes(1)), 1))}
            here |= own | starts
            parts += [
                Part(wanted=frozenset({(2, first)}), flops=of_inputs),
                Part(wanted=frozenset({(2, first + 1)}), flops=steps * of_one),
                Part(wanted=frozenset(below), flops=of_inputs),
                Part(wanted=frozenset(below | own | starts), flops=max(steps - 1, 0) * of_one),
                Part(wanted=_at_positions(1), flops=of_one),
            ]
            if of_projection:
                places = frozenset(below | own | starts)
                parts += [
                    Part(
                        wanted=frozenset({(2, first + count - 1)}),
                        flops=steps * of_projection,
                    ),
                    Part(wanted=places, flops=steps * of_projection),
                ]
        below |= here
    return Products(forward=forward, gradient=tuple(parts), again=forward, operand=at.dtype(0))


def _cell(at: NamedArgs) -> Products:
    x, hidden, w_ih, w_hh = at.shape(0), at.shape(1), at.shape(2), at.shape(3)
    of_inputs, of_state = 2 * math.prod(x) * w_ih[0], 2 * math.prod(hidden) * w_hh[0]
    return Products(
        forward=of_inputs + of_state,
        gradient=(
            Part(wanted=_at_positions(0), flops=of_inputs),
            Part(wanted=_at_positions(2), flops=of_inputs),
            Part(wanted=_at_positions(1), flops=of_state),
            Part(wanted=_at_positions(3), flops=of_state),
        ),
        again=of_inputs + of_state,
        operand=at.dtype(0),
    )


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
        "conv": _convolution(False),
        "conv_transpose": _convolution(True),
        "convolution": _convolution(),
        "attention": _attention,
        "recurrent": _recurrent,
        "cell": _cell,
    }
)
"""By the name that an op's facts give."""
