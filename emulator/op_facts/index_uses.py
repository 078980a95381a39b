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

from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.table import facts_of
from pef_schema.program import Arg, DType, Graph, Node, Ref

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
    """Whether a node's indices are labels: negative int16 labels then mean large ones."""
    return facts_of(node.op).indices == "labels"


_Found = tuple[int, int, int | None]
"""Lowest and highest allowed index, and the ignored one."""

_Uses = Iterator[tuple[Arg, _Found]]

_Finder = Callable[[NamedArgs], _Uses]


def index_uses(graph: Graph) -> tuple[IndexUse, ...]:
    """All indices of a graph, in the order of its nodes.

    Args:
        graph: A traced or compiled graph.

    Returns:
        One entry for each argument that holds indices; masks do not count.
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
        for arg, (low, high, ignored) in _FINDERS[kind](NamedArgs(graph, node))
        if isinstance(arg, Ref) and not graph.values[arg.value].dtype.has_gradient
    )


def _whole(arg: Arg) -> int:
    return arg if isinstance(arg, int) else 0


def _rows(at: NamedArgs) -> _Uses:
    """Rows of a table; the second argument holds them."""
    yield at.argument(1), (0, at.size(0, 0) - 1, None)


def _bags(at: NamedArgs) -> _Uses:
    yield from _rows(at)
    yield at.argument(2), (0, at.size(1, 0), None)


def _along(negative: bool) -> _Finder:
    """Places along a dimension: ``(tensor, dim, index, ...)``."""

    def find(at: NamedArgs) -> _Uses:
        size = at.size(0, _whole(at.argument(1)))
        yield at.argument(2), (-size if negative else 0, size - 1, None)

    return find


def _flat(at: NamedArgs) -> _Uses:
    """Places in the flattened tensor."""
    size = math.prod(at.shape(0))
    yield at.argument(1), (-size, size - 1, None)


def _flat_only(at: NamedArgs) -> _Uses:
    """Places in the flattened tensor; along a dimension torch takes any modulo its size."""
    if not isinstance(at.argument(2), int):
        yield at.argument(1), (0, math.prod(at.shape(0)) - 1, None)


def _each_dim(at: NamedArgs) -> _Uses:
    """One tensor of indices, or None, for each dimension; a mask is not an index."""
    indices = at.argument(1)
    shape = at.shape(0)
    args: Sequence[Arg] = indices if isinstance(indices, tuple) else ()
    for item, (arg, size) in enumerate(zip(args, shape, strict=False)):
        if at.dtype(1, item) not in (DType.BOOL, DType.UINT8):
            yield arg, (-size, size - 1, None)


def _labels(at: NamedArgs) -> _Uses:
    """Classes of scores ``(N, C, ...)`` or ``(C,)``."""
    shape = at.shape(0)
    classes = shape[1] if len(shape) > 1 else math.prod(shape)
    yield at.argument(1), (0, classes - 1, _whole(at.argument(4, default=-100)))


def _label_sets(at: NamedArgs) -> _Uses:
    yield at.argument(1), (-1, at.size(0, -1) - 1, None)


def _ctc(at: NamedArgs) -> _Uses:
    """Lengths; and labels where all count, since rows may hold anything behind their ends."""
    scores, targets = at.shape(0), at.shape(1)
    if len(targets) == 1 and len(scores) == 3:
        yield at.argument(1), (0, scores[-1] - 1, None)
    yield at.argument(2), (0, at.size(0, 0), None)
    yield at.argument(3), (0, at.size(1, -1), None)


def _classes(at: NamedArgs) -> _Uses:
    yield at.argument(0), (0, _whole(at.argument(1)) - 1, None)


def _pooled(at: NamedArgs) -> _Uses:
    dims = int(at.op.partition("max_unpool")[2][0])
    yield at.argument(1), (0, math.prod(at.result[-dims:]) - 1, None)


def _divisors(at: NamedArgs) -> _Uses:
    if at.result_dtype is None or not at.result_dtype.is_floating:
        yield at.argument(1), (-(2**63), 2**63 - 1, None)


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
