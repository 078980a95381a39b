"""What is no product: elementwise operations, reductions, norms, losses.

One operation of an element counts as one, an exponential as an addition: enough to tell a section
that computes from one that moves. Products are counted elsewhere, and exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from emulator.op_facts.fused_products import is_projected
from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.table import facts_of
from pef_schema.program import Gradient, Graph, Node

__all__ = ["has_other", "other_flops", "other_gradient_flops"]


def _input(at: NamedArgs, position: int, factor: int) -> int:
    """So many for each element of an argument."""
    return factor * sum(map(math.prod, at.shapes(position)))


def _results(at: NamedArgs, factor: int) -> int:
    """So many for each element of the largest result."""
    return factor * max(map(math.prod, at.results), default=0)


def _window(at: NamedArgs) -> int:
    """A pool: each element of the result takes its window."""
    kernel = at.given(1)
    sizes = kernel if isinstance(kernel, tuple) else (kernel,)
    whole = [n for n in sizes if isinstance(n, int)]
    dims = int(at.op.partition("_pool")[2][0])
    taps = math.prod(whole) if len(whole) > 1 else whole[0] ** dims if whole else 1
    return taps * max(map(math.prod, at.results), default=0)


def _bag(at: NamedArgs) -> int:
    """Each index adds a row."""
    table = at.shape(0)
    return math.prod(at.shape(1)) * (table[-1] if table else 1)


def _renorm(at: NamedArgs) -> int:
    """Square, sum and factor of each element of the rows that are named."""
    return 3 * _bag(at)


def _distance(at: NamedArgs) -> int:
    """Difference, power and sum for each pair and feature."""
    features = at.shape(0)[-1] if at.shape(0) else 1
    return 3 * features * math.prod(at.result)


def _bias(at: NamedArgs, position: int) -> int:
    """One addition for each element of the result where there is a bias."""
    return math.prod(at.result) if at.given(position) is not None else 0


def _attention(at: NamedArgs) -> int:
    """Scale, mask, and the five of a softmax, for each pair."""
    q, k = at.shape(0), at.shape(1)
    return 7 * math.prod(q[:-1]) * k[-2]


def _gates(at: NamedArgs, factor: int) -> int:
    """Of a recurrent layer: so many for each element of a state in each step."""
    layers = at.given(4)
    result = at.results[0] if at.results else ()
    elements = math.prod(result)
    if is_projected(at):
        # The result is the narrow h; what is computed for each element is of the width of c.
        h, c = at.shapes(1)
        elements = elements // max(h[-1], 1) * c[-1]
    return factor * elements * (layers if isinstance(layers, int) else 1)


def _fourier(at: NamedArgs) -> int:
    """5 n log2 n for each transform of n complex numbers, half of it where one side is real."""
    sizes = at.shape(0) if at.op != "aten._fft_c2r.default" else at.result
    dims = at.given(1)
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
    """Whether somebody has said what an op takes besides products.

    Args:
        op: Its full name.

    Example:
        >>> has_other("aten.tanh.default"), has_other("aten.sort.default")
        (True, False)
    """
    facts = facts_of(op)
    stated = facts.flops is not None or facts.products is not None
    return facts.counted and (facts.moves or facts.cheap or stated)


def other_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node that are no products.

    An op of whose count nothing is said is elementwise: one for each element of its result.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node; :func:`has_other` holds of its op.
    """
    facts = facts_of(node.op)
    if facts.moves or (facts.flops is None and facts.products is not None):
        return 0
    rule, *numbers = facts.flops or ("results", 1)
    return _RULES[rule](NamedArgs(graph, node), *numbers)


def other_gradient_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node's gradient that are no products: about those of the node per argument.

    Args:
        graph, node: As :func:`other_flops` takes them.
    """
    at = NamedArgs(graph, node)
    wanted = len(at.wanted())
    if facts_of(node.op).repeats:
        return wanted * math.prod(at.result)
    return wanted * other_flops(graph, node)
