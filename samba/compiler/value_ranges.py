"""Ranges of the whole numbers in a graph, as far as its operations alone tell them.

``argmax`` over ten classes is a number from 0 to 9 whatever the data is. An index that can be shown
to be in range needs no check. What is not understood has no range; a range is never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from emulator.op_facts.table import facts_of
from pef_schema.program import Arg, DType, Graph, Node, Ref

Range = tuple[float, float]
"""The least and the largest number; infinite where there is no bound."""

_OF_TYPE: dict[DType, Range] = {
    DType.BOOL: (0, 1),
    DType.UINT8: (0, 255),
    DType.INT8: (-128, 127),
    DType.INT16: (-32768, 32767),
    DType.INT32: (-(2**31), 2**31 - 1),
    DType.INT64: (-(2**63), 2**63 - 1),
    DType.UINT32: (0, 2**32 - 1),
}
_ALL: Range = (-math.inf, math.inf)


def value_ranges(graph: Graph, known: Mapping[int, Range]) -> dict[int, Range]:
    """Find the ranges of whole numbers.

    Args:
        graph: A traced or compiled graph.
        known: Ranges of values that no node produces, such as constants.

    Returns:
        A range for every value whose type is integral or boolean.
    """
    reader = _Reader(graph, known)
    for node in graph.nodes:
        reader.read(node)
    return reader.ranges


class _Reader:
    def __init__(self, graph: Graph, known: Mapping[int, Range]) -> None:
        self.graph = graph
        self.ranges: dict[int, Range] = {
            index: known.get(index, _OF_TYPE[value.dtype])
            for index, value in enumerate(graph.values)
            if not value.dtype.has_gradient
        }

    def read(self, node: Node) -> None:
        """Take note of what a node gives."""
        facts = facts_of(node.op)
        rule = facts.ranges or (("first",) if facts.elements in ("same", "first") else None)
        if rule is None:
            return
        spans = _RULES[rule[0]](self, node, *rule[1:])
        outputs = node.outputs if isinstance(spans, list) else node.outputs[:1]
        for value, span in zip(
            outputs, spans if isinstance(spans, list) else [spans], strict=False
        ):
            if value < 0 or span is None or value not in self.ranges:
                continue
            least, most = _OF_TYPE[self.graph.values[value].dtype]
            if least <= span[0] and span[1] <= most:  # else it may have wrapped around
                self.ranges[value] = span

    def of(self, arg: Arg) -> Range:
        """Range of an argument: of a value or of a number."""
        if isinstance(arg, Ref):
            return self.ranges.get(arg.value, _ALL)
        if isinstance(arg, (bool, int)):
            return int(arg), int(arg)
        if isinstance(arg, float) and arg.is_integer():
            return arg, arg
        return _ALL

    def shape(self, arg: Arg) -> tuple[int, ...]:
        return self.graph.values[arg.value].shape if isinstance(arg, Ref) else ()

    def is_whole(self, arg: Arg) -> bool:
        if isinstance(arg, Ref):
            return not self.graph.values[arg.value].dtype.has_gradient
        return isinstance(arg, int)


def _argument(node: Node, position: int, name: str = "", default: Arg = None) -> Arg:
    if position < len(node.args):
        return node.args[position]
    return dict(node.kwargs).get(name, default)


def _union(*spans: Range) -> Range:
    return min(low for low, _ in spans), max(high for _, high in spans)


def _first(r: _Reader, node: Node) -> Any:
    """Elements of the first argument, moved."""
    span = r.of(node.args[0]) if r.is_whole(node.args[0]) else None
    return [span] * len(node.outputs)


def _join(r: _Reader, node: Node) -> Any:
    parts = node.args[0]
    if not isinstance(parts, tuple) or not parts:
        return None
    return _union(*(r.of(part) for part in parts))


def _some_of(r: _Reader, node: Node, *positions: int) -> Any:
    """Each element is one of these arguments'."""
    return _union(*(r.of(_argument(node, p)) for p in positions))


def _place(r: _Reader, node: Node, output: int) -> Any:
    """Places along a dimension, or in the flattened tensor if none is given."""
    shape = r.shape(node.args[0])
    position = 2 if node.op in ("aten.kthvalue.default", "aten.topk.default") else 1
    default = None if output == 0 and node.op in _FLAT_PLACES else -1
    dim = _argument(node, position, "dim", default)
    if node.op == "aten.sort.stable":
        dim = _argument(node, 2, "dim", -1)
    if node.op == "aten.argsort.stable":
        dim = dict(node.kwargs).get("dim", -1)
    size = shape[dim] if isinstance(dim, int) and shape else math.prod(shape)
    return [None] * output + [(0, max(size - 1, 0))]


_FLAT_PLACES = frozenset({"aten.argmax.default", "aten.argmin.default"})


def _pool_places(r: _Reader, node: Node, dims: int) -> Any:
    return [None, (0, math.prod(r.shape(node.args[0])[-dims:]) - 1)]


def _buckets(r: _Reader, node: Node) -> Any:
    borders = node.args[0 if "searchsorted" in node.op else 1]
    return 0, (r.shape(borders) or (1,))[-1]


def _drawn_class(r: _Reader, node: Node) -> Any:
    return 0, r.shape(node.args[0])[-1] - 1


def _drawn_below(r: _Reader, node: Node) -> Any:
    position = {"aten.randint.default": 0, "aten.randint_like.default": 1}.get(node.op)
    if position is None:
        position = 1 if "like" in node.op else 0
        return r.of(node.args[position])[0], r.of(node.args[position + 1])[1] - 1
    return 0, r.of(node.args[position])[1] - 1


def _permuted(r: _Reader, node: Node) -> Any:
    return 0, max(r.of(node.args[0])[1] - 1, 0)


def _counted(r: _Reader, node: Node) -> Any:
    """``arange``: from the start (0) by the step (1) to before the end."""
    numbers = [r.of(a) for a in node.args]
    if node.op == "aten.arange.default":
        start, end, step = (0, 0), numbers[0], (1, 1)
    else:
        start, end = numbers[:2]
        step = numbers[2] if len(numbers) > 2 else (1, 1)
    if any(low != high for low, high in (start, end, step)) or _ALL in (start, end, step):
        return None
    count = r.graph.values[node.outputs[0]].shape[0]
    last = start[0] + step[0] * max(count - 1, 0)
    return _union(start, (last, last))


def _number(r: _Reader, node: Node, position: int) -> Any:
    return r.of(_argument(node, position, "fill_value"))


def _constantly(r: _Reader, node: Node, low: int, high: int) -> Any:
    del r, node
    return low, high


def _cut(r: _Reader, node: Node) -> Any:
    """``clamp``: between bounds of which either may be None."""
    if not r.is_whole(node.args[0]):
        return None
    low, high = r.of(node.args[0])
    names = ("min", "max")
    if "_min" in node.op or node.op in ("aten.maximum.default", "aten.max.other"):
        least, most = _argument(node, 1), None
    elif "_max" in node.op or node.op in ("aten.minimum.default", "aten.min.other"):
        least, most = None, _argument(node, 1)
    else:
        least, most = (_argument(node, p, n) for p, n in zip((1, 2), names, strict=True))
    if least is not None:
        bottom = r.of(least)
        low, high = max(low, bottom[0]), max(high, bottom[1])
    if most is not None:
        top = r.of(most)
        low, high = min(low, top[0]), min(high, top[1])
    return low, high


def _scaled(r: _Reader, node: Node) -> tuple[Range, Range]:
    one, other = r.of(node.args[0]), r.of(node.args[1])
    factor = r.of(_argument(node, 2, "alpha", 1))
    return one, _times(other, factor)


def _times(one: Range, other: Range) -> Range:
    products = [0.0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(products), max(products)


def _sum(r: _Reader, node: Node) -> Any:
    one, other = _scaled(r, node)
    return one[0] + other[0], one[1] + other[1]


def _difference(r: _Reader, node: Node) -> Any:
    one, other = _scaled(r, node)
    if node.op.startswith("aten.rsub"):
        one, other = r.of(node.args[1]), r.of(node.args[0])
    return one[0] - other[1], one[1] - other[0]


def _product(r: _Reader, node: Node) -> Any:
    return _times(r.of(node.args[0]), r.of(node.args[1]))


def _negative(r: _Reader, node: Node) -> Any:
    low, high = r.of(node.args[0])
    return -high, -low


def _size(r: _Reader, node: Node) -> Any:
    low, high = r.of(node.args[0])
    return 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))


def _rest(r: _Reader, node: Node) -> Any:
    """``remainder`` by a positive number."""
    low, high = r.of(node.args[1])
    whole = r.is_whole(node.args[0]) and r.is_whole(node.args[1])
    return (0, high - 1) if whole and low > 0 and high < math.inf else None


def _quotient(r: _Reader, node: Node) -> Any:
    """Division by a positive number, rounded down."""
    low, high = r.of(node.args[1])
    mode = dict(node.kwargs).get("rounding_mode", "floor")
    if low != high or not 0 < low < math.inf or mode != "floor" or not r.is_whole(node.args[0]):
        return None
    one = r.of(node.args[0])
    return one[0] // low, one[1] // low


def _total(r: _Reader, node: Node) -> Any:
    """Sums of at most as many as there are along the dimensions."""
    if not r.is_whole(node.args[0]):
        return None
    shape = r.shape(node.args[0])
    dims = _argument(node, 1)
    along = dims if isinstance(dims, tuple) else (dims,)
    sizes = [shape[d] for d in along if isinstance(d, int)] if shape else []
    if dims is None or dims == ():
        sizes = shape
    count = math.prod(sizes)
    low, high = r.of(node.args[0])
    least = 1 if "cumsum" in node.op else count
    return min(low * least, low * count), max(high * least, high * count)


def _both(r: _Reader, node: Node) -> Any:
    """Bits that two numbers share: no more than the smaller, where neither is negative."""
    highs = [high for low, high in (r.of(a) for a in node.args[:2]) if low >= 0]
    return (0, min(highs)) if highs else None


def _padded(r: _Reader, node: Node) -> Any:
    position = 3 if node.op == "aten.pad.default" else 2
    fill = _argument(node, position)
    return _union(r.of(node.args[0]), r.of(0 if fill is None else fill))


def _with_zero(r: _Reader, node: Node) -> Any:
    return _union(r.of(node.args[0]), (0, 0))


def _extremes(r: _Reader, node: Node) -> Any:
    return [r.of(node.args[0]), *_place(r, node, 1)[1:]]


_RULES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "first": _first,
        "join": _join,
        "some_of": _some_of,
        "extremes": _extremes,
        "place": _place,
        "pool_places": _pool_places,
        "buckets": _buckets,
        "drawn_class": _drawn_class,
        "drawn_below": _drawn_below,
        "permuted": _permuted,
        "counted": _counted,
        "number": _number,
        "constantly": _constantly,
        "cut": _cut,
        "sum": _sum,
        "difference": _difference,
        "product": _product,
        "negative": _negative,
        "size": _size,
        "rest": _rest,
        "quotient": _quotient,
        "total": _total,
        "both": _both,
        "padded": _padded,
        "with_zero": _with_zero,
    }
)
"""The range of a node's first result, or a list with that of each, by the name that an op's facts
give; its numbers come behind the node."""
