"""Floating point operations of a node and of its gradient, from its op, arguments and shapes.

Two figures are kept apart. *Products* are matrix products and convolutions: what
``torch.utils.flop_counter`` counts, and what takes the time of most models. *Other* is everything
else, one operation for each element and step. Neither needs jax or torch, and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.other_flops import has_other, other_flops, other_gradient_flops
from emulator.op_facts.product_flops import products_of
from emulator.op_facts.products import Products, gradient_flops_of
from emulator.op_facts.table import facts_of
from pef_schema.program import DType, Gradient, Graph, Node

__all__ = ["Flops", "gradient_flops", "node_flops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """What something takes.

    Args:
        products: Operations of matrix products and convolutions, by the type that is multiplied,
            in the order of types.
        other: All other operations.
        unknown: Ops among it of which nobody has said what they take; they are not in the figures.
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
        Its operations; of an op whose cost nobody has said, none and its name.

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
    counted = _counted(graph, node, other_flops)
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
    counted = _counted(graph, node, other_gradient_flops)
    if counted is None:
        return Flops(unknown=(f"gradient of {node.op}",))
    products, other = counted
    if products is None:
        return Flops(other=other)
    wanted = NamedArgs(graph, node).wanted()
    flops = gradient_flops_of(products, wanted) + (products.again if again and wanted else 0)
    return Flops(products=((products.operand, flops),) if flops else (), other=other)


def _counted(
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
