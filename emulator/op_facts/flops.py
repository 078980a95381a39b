"""Floating point operations of a node and of its gradient, from its op, arguments and shapes.

Two figures are kept apart. *Products* are matrix products and convolutions: what
``torch.utils.flop_counter`` counts, and what takes the time of most models. *Other* is everything
else, one operation for each element and step, an exponential as an addition: enough to tell a
section that computes from one that moves. Nothing is computed, and neither jax nor torch is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.product_flops import Products, gradient_flops_of, products_of
from emulator.op_facts.table import facts_of
from pef_schema.program import DType, Gradient, Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """What something takes.

    Args:
        products: Operations of matrix products and convolutions, by the type that is multiplied,
            in the order of types.
        other: All other operations.
        unknown: Ops whose operations are not known; they are not in the figures.
    """

    products: tuple[tuple[DType, int], ...] = ()
    other: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def product_flops(self) -> int:
        """Operations of matrix products and convolutions of all types."""
        return sum(flops for _, flops in self.products)

    def __add__(self, more: Flops) -> Flops:
        """Both together.

        Example:
            >>> one = Flops(products=((DType.FLOAT32, 8),), other=2, unknown=("aten.sort.default",))
            >>> (one + one).products, (one + one).other, (one + one).unknown
            (((<DType.FLOAT32: 9>, 16),), 4, ('aten.sort.default',))
        """
        by_type = dict(self.products)
        for dtype, flops in more.products:
            by_type[dtype] = by_type.get(dtype, 0) + flops
        return Flops(
            products=tuple(sorted(by_type.items())),
            other=self.other + more.other,
            unknown=tuple(sorted({*self.unknown, *more.unknown})),
        )


def node_flops(graph: Graph | Gradient, node: Node) -> Flops:
    """What a node takes.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node.

    Returns:
        Its operations; none and the name of the op if its cost is not known.

    Example:
        >>> from pef_schema.program import Ref, Value
        >>> shapes = [(64, 784), (10, 784), (64, 10)]
        >>> graph = Graph(
        ...     name="g", inputs=(), outputs=(), nodes=(),
        ...     values=tuple(
        ...         Value(name=str(s), shape=s, dtype=DType.FLOAT32, needs_grad=s == (10, 784))
        ...         for s in shapes
        ...     ),
        ... )
        >>> node = Node(op="aten.linear.default", args=(Ref(0), Ref(1)), outputs=(2,))
        >>> node_flops(graph, node).product_flops == 2 * 64 * 784 * 10
        True
        >>> gradient_flops(graph, node) == node_flops(graph, node)  # of the weight alone
        True
        >>> node_flops(graph, Node(op="aten.sort.default", args=(Ref(0),), outputs=(2,))).unknown
        ('aten.sort.default',)
    """
    counted = _products_and_others(graph, node, _other_flops)
    if counted is None:
        return Flops(unknown=(node.op,))
    products, other = counted
    return Flops(
        products=((products.operand, products.forward),)
        if products is not None and products.forward
        else (),
        other=other,
    )


def gradient_flops(graph: Graph, node: Node, *, again: bool = False) -> Flops:
    """What the gradient of a node takes: of those arguments that want one.

    Args:
        graph: Its graph.
        node: The node.
        again: Whether the node does not run in the same executable, so that its gradient has to
            make again what it needs of it and no region keeps: the scores of attention, the states
            of a recurrent layer.

    Returns:
        Its operations. A custom gradient takes what its own nodes take.
    """
    gradient = graph.gradient_of(node)
    if gradient is not None:
        total = Flops()
        for inner in gradient.nodes:
            total = total + node_flops(gradient, inner)
        return total
    counted = _products_and_others(graph, node, _other_gradient_flops)
    if counted is None:
        return Flops(unknown=(f"gradient of {node.op}",))
    products, other = counted
    if products is None:
        return Flops(other=other)
    places = NamedArgs(graph, node).wanted()
    flops = gradient_flops_of(products, places) + (products.again if again and places else 0)
    return Flops(products=((products.operand, flops),) if flops else (), other=other)


def _products_and_others(
    graph: Graph | Gradient, node: Node, other: Callable[[Graph | Gradient, Node], int]
) -> tuple[Products | None, int] | None:
    """Products and other operations of a node; None where nobody has said what it takes."""
    if not has_other(node.op):
        return None
    try:
        products = products_of(graph, node)
        if products is None and facts_of(node.op).products is not None:
            return None
        return products, other(graph, node)
    except (IndexError, TypeError, ValueError):
        # A PEF may hold arguments that fit no signature: the device refuses it, here it is unknown.
        return None


# -- all but products: elementwise operations, reductions, norms, losses ------


def _input(at: NamedArgs, position: int, factor: int) -> int:
    """So many for each element of an argument."""
    return factor * sum(map(math.prod, at.shapes(position)))


def _results(at: NamedArgs, factor: int) -> int:
    """So many for each element of the largest result."""
    return factor * max(map(math.prod, at.results), default=0)


def _window(at: NamedArgs) -> int:
    """A pool: each element of the result takes its window."""
    kernel = at.argument(1)
    sizes = kernel if isinstance(kernel, tuple) else (kernel,)
    whole = [n for n in sizes if isinstance(n, int)]
    dims = int(at.op.partition("_pool")[2][0])
    taps = math.prod(whole) if len(whole) > 1 else whole[0] ** dims if whole else 1
    return taps * max(map(math.prod, at.results), default=0)


def _bag(at: NamedArgs) -> int:
    """Each index adds a row."""
    return math.prod(at.shape(1)) * at.size(0, -1)


def _renorm(at: NamedArgs) -> int:
    """Square, sum and factor of each element of the rows that are named."""
    return 3 * _bag(at)


def _distance(at: NamedArgs) -> int:
    """Difference, power and sum for each pair and feature."""
    return 3 * at.size(0, -1) * math.prod(at.result)


def _bias(at: NamedArgs, position: int) -> int:
    """One addition for each element of the result where there is a bias."""
    return math.prod(at.result) if at.argument(position) is not None else 0


def _attention(at: NamedArgs) -> int:
    """Scale, mask, and the five of a softmax, for each pair."""
    return 7 * math.prod(at.shape(0)[:-1]) * at.size(1, -2)


def _gates(at: NamedArgs, factor: int) -> int:
    """Of a recurrent layer: so many for each element of a state in each step."""
    layers = at.argument(4)
    result = at.results[0] if at.results else ()
    elements = math.prod(result)
    if at.is_projected:
        # The result is the narrow h; what is computed for each element is of the width of c.
        h, c = at.shapes(1)
        elements = elements // max(h[-1], 1) * c[-1]
    return factor * elements * (layers if isinstance(layers, int) else 1)


def _fourier(at: NamedArgs) -> int:
    """5 n log2 n for each transform of n complex numbers, half of it where one side is real."""
    sizes = at.shape(0) if at.op != "aten._fft_c2r.default" else at.result
    dims = at.argument(1)
    axes = [d for d in dims if isinstance(d, int)] if isinstance(dims, tuple) else []
    points = math.prod(sizes[d] for d in axes)
    whole = round(5 * math.prod(sizes) * math.log2(points)) if points > 1 else 0
    return whole if at.op == "aten._fft_c2c.default" else whole // 2


_RULES: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "input": _input,
        "results": _results,
        "window": _window,
        "bag": _bag,
        "renorm": _renorm,
        "distance": _distance,
        "bias": _bias,
        "attention": _attention,
        "gates": _gates,
        "fourier": _fourier,
    }
)
"""By the name that an op's facts give, with its numbers behind it."""


def has_other(op: str) -> bool:
    """Whether the facts of an op say what it computes besides products.

    Args:
        op: Its full name.

    Example:
        >>> has_other("aten.tanh.default"), has_other("aten.sort.default")
        (True, False)
    """
    facts = facts_of(op)
    stated = facts.flops is not None or facts.products is not None
    return facts.counted and (facts.moves or facts.cheap or stated)


def _other_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node other than products.

    An op without a count is elementwise: one operation for each element of its result.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node; :func:`has_other` holds of its op.
    """
    facts = facts_of(node.op)
    if facts.moves or (facts.flops is None and facts.products is not None):
        return 0
    rule, *numbers = facts.flops or ("results", 1)
    return _RULES[rule](NamedArgs(graph, node), *numbers)


def _other_gradient_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node's gradient other than products: per argument about those of the node.

    Args:
        graph, node: As :func:`_other_flops` takes them.
    """
    at = NamedArgs(graph, node)
    count = len(at.wanted())
    if facts_of(node.op).repeats:
        return count * math.prod(at.result)
    return count * _other_flops(graph, node)
