"""Where a graph reads or writes by index, or divides whole numbers, and what torch allows there.

A running program cannot raise: on the device an index that is out of range reads or writes another
place, or counts as ignored, and a division by zero has some result. What can be checked is checked
elsewhere; this is the table of what there is to check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from emulator.op_facts.table import facts_of
from pef_schema.program import Arg, DType, Graph, Node, Ref

__all__ = ["IndexUse", "index_uses", "is_label"]

_INT16_SPAN = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUse:
    """One argument of one node that holds indices.

    Args:
        node: Position of the node in its graph.
        value: The value that holds the indices.
        low, high: The least and the largest index that torch allows.
        ignored: A further one that means "leave this out"; None if there is none.
        wraps: Whether negative indices stand for those above 32767, as in labels of int16.
        divisor: Whether it holds divisors of whole numbers: zero alone is not allowed.
    """

    node: int
    value: int
    low: int
    high: int
    ignored: int | None = None
    wraps: bool = False
    divisor: bool = False

    def allows(self, index: float) -> bool:
        """Whether torch allows an index.

        Args:
            index: A whole number, or one that is cut to a whole number before it is used.

        Example:
            >>> use = IndexUse(node=0, value=0, low=0, high=9, ignored=-100)
            >>> [use.allows(i) for i in (0, 9, 10, -1, -100)]
            [True, True, False, False, True]
        """
        if self.divisor:
            return index != 0
        if self.low - 1 < index < self.high + 1 or index == self.ignored:
            return True
        above = index + _INT16_SPAN
        return self.wraps and index < 0 and (above <= self.high or above == self.ignored)

    @property
    def allowed(self) -> str:
        """The allowed indices in words."""
        if self.divisor:
            return "any number but 0"
        also = "" if self.ignored is None else f", or {self.ignored}, which is ignored"
        return f"{self.low} to {self.high}{also}"


def is_label(node: Node) -> bool:
    """Whether a node's indices are labels, of which negative ones of int16 mean large ones."""
    return facts_of(node.op).indices == "labels"


_Found = tuple[int, int, int | None]
"""Lowest and highest allowed index, and the ignored one."""

_Finder = Callable[[Graph, Node], Iterator[tuple[Arg, _Found]]]


def index_uses(graph: Graph) -> tuple[IndexUse, ...]:
    """All indices of a graph, in the order of its nodes.

    Args:
        graph: A traced or compiled graph.

    Returns:
        One entry for each argument that holds indices; masks are none.
    """
    return tuple(
        IndexUse(
            node=position,
            value=arg.value,
            low=low,
            high=high,
            ignored=ignored,
            wraps=is_label(node) and graph.values[arg.value].dtype is DType.INT16,
            divisor=kind == "divisors",
        )
        for position, node in enumerate(graph.nodes)
        if (kind := facts_of(node.op).indices) is not None
        for arg, (low, high, ignored) in _FINDERS[kind](graph, node)
        if isinstance(arg, Ref) and not graph.values[arg.value].dtype.has_gradient
    )


def _shape(graph: Graph, arg: Arg) -> tuple[int, ...]:
    return graph.values[arg.value].shape if isinstance(arg, Ref) else ()


def _argument(node: Node, position: int, default: Arg) -> Arg:
    return node.args[position] if position < len(node.args) else default


def _whole(arg: Arg) -> int:
    return arg if isinstance(arg, int) else 0


def _rows(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """Rows of a table; the second argument holds them."""
    yield node.args[1], (0, next(iter(_shape(graph, node.args[0])), 1) - 1, None)


def _bags(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    yield from _rows(graph, node)
    yield node.args[2], (0, _shape(graph, node.args[1])[0], None)


def _along(negative: bool) -> _Finder:
    """Places along a dimension: ``(tensor, dim, index, ...)``."""

    def find(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
        shape = _shape(graph, node.args[0]) or (1,)
        size = shape[_whole(node.args[1])]
        yield node.args[2], (-size if negative else 0, size - 1, None)

    return find


def _flat(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """Places in the flattened tensor."""
    size = math.prod(_shape(graph, node.args[0]))
    yield node.args[1], (-size, size - 1, None)


def _flat_only(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """Places in the flattened tensor; along a dimension torch takes any modulo its size."""
    if not isinstance(_argument(node, 2, None), int):
        yield node.args[1], (0, math.prod(_shape(graph, node.args[0])) - 1, None)


def _each_dim(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """One tensor of indices, or None, for each dimension; a mask is no index."""
    indices = node.args[1]
    shape = _shape(graph, node.args[0])
    given: Sequence[Arg] = indices if isinstance(indices, tuple) else ()
    for arg, size in zip(given, shape, strict=False):
        mask = isinstance(arg, Ref) and graph.values[arg.value].dtype in (DType.BOOL, DType.UINT8)
        if not mask:
            yield arg, (-size, size - 1, None)


def _labels(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """Classes of scores ``(N, C, ...)`` or ``(C,)``."""
    shape = _shape(graph, node.args[0])
    classes = shape[1] if len(shape) > 1 else math.prod(shape)
    yield node.args[1], (0, classes - 1, _whole(_argument(node, 4, -100)))


def _label_sets(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    yield node.args[1], (-1, _shape(graph, node.args[0])[-1] - 1, None)


def _ctc(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    """Lengths; and labels where all count, since rows may hold anything behind their ends."""
    scores, targets = _shape(graph, node.args[0]), _shape(graph, node.args[1])
    if len(targets) == 1 and len(scores) == 3:
        yield node.args[1], (0, scores[-1] - 1, None)
    yield node.args[2], (0, scores[0], None)
    yield node.args[3], (0, targets[-1], None)


def _classes(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    del graph
    yield node.args[0], (0, _whole(_argument(node, 1, 0)) - 1, None)


def _pooled(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    dims = int(node.op.partition("max_unpool")[2][0])
    shape = graph.values[node.outputs[0]].shape
    yield node.args[1], (0, math.prod(shape[-dims:]) - 1, None)


def _divisors(graph: Graph, node: Node) -> Iterator[tuple[Arg, _Found]]:
    result = graph.values[node.outputs[0]].dtype
    if not result.is_floating:
        yield node.args[1], (-(2**63), 2**63 - 1, None)


_FINDERS: Mapping[str, _Finder] = MappingProxyType(
    {
        "rows": _rows,
        "bags": _bags,
        "along": _along(False),
        "along_signed": _along(True),
        "flat": _flat,
        "flat_only": _flat_only,
        # Not of torch's unsafe forms, whose indices need no check.
        "each_dim": _each_dim,
        "classes": _classes,
        "ctc": _ctc,
        "label_sets": _label_sets,
        "pooled": _pooled,
        "divisors": _divisors,
        "labels": _labels,
    }
)
"""By the name that an op's facts give."""
