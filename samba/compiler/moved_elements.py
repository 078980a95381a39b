"""Which elements from outside of a graph reach a value unchanged: through views, slices and casts.

Each element that comes from outside has a number. The operations that only move elements (the fact
``elements``) are run by torch on these numbers, so a value's numbers say where each of its elements
came from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from emulator.op_facts.facts import Elements
from emulator.op_facts.table import facts_of, signature_of
from pef_schema.program import Graph, Node, Ref, refs_of
from samba.tracer.reference import run_node

_MOST = 1 << 26
"""Elements that are numbered at most; a larger source is taken for computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedElements:
    """Where the elements of a value come from.

    Args:
        sources: For each source, the places of those of its elements that are among them,
            ascending.
        computed: Values whose elements are among them and come from no source.
        fills: Numbers that a padding put among them.
    """

    sources: dict[int, torch.Tensor]
    computed: frozenset[int]
    fills: frozenset[float]


def moved_elements(
    graph: Graph, wanted: Iterable[int], sources: Collection[int]
) -> dict[int, MovedElements]:
    """Find where the elements of values come from.

    Args:
        graph: A traced or compiled graph.
        wanted: The values.
        sources: Values from outside that count.

    Returns:
        An entry for each of ``wanted``.
    """
    wanted = list(dict.fromkeys(wanted))
    needed = set(wanted)
    followed: list[Node] = []
    producer = {value: node for node in graph.nodes for value in node.outputs}
    for node in reversed(graph.nodes):
        if not needed.intersection(node.outputs):
            continue
        if _shifts_labels(node, producer):
            node = replace(node, op="aten.alias.default", args=node.args[2:])
        if (elements := _elements_of(node)) is not None:
            followed.append(node)
            needed.update(node.refs() if elements == "all" else refs_of(node.args[0]))
    produced = {v for node in followed for v in node.outputs}
    numbered = _Numbered(graph, sorted(needed - produced), sources)
    for node in reversed(followed):
        numbered.move(node)
    return {value: numbered.origin(value) for value in wanted}


def _shifts_labels(node: Node, producer: Mapping[int, Node]) -> bool:
    """Whether a node is ``where(…, label + 65536, label)``, made by the tracer of int16 labels.

    What it gives are the labels themselves, of which negative ones stand for those above 32767.
    """
    if node.op != "aten.where.self":
        return False
    _, shifted, label = node.args
    maker = producer.get(shifted.value) if isinstance(shifted, Ref) else None
    return maker is not None and maker.op == "aten.add.Tensor" and maker.args == (label, 1 << 16)


def _elements_of(node: Node) -> Elements | None:
    """Whose elements a node gives, of those whose numbers are known; None if it computes some."""
    if node.op == "aten.pad.default" and node.args[2:3] not in ((), ("constant",)):
        return None
    elements = facts_of(node.op).elements
    return None if elements == "chosen" else elements


class _Numbered:
    """Numbers of elements by value."""

    def __init__(self, graph: Graph, starts: Iterable[int], sources: Collection[int]) -> None:
        self._graph = graph
        self._numbers: dict[int, torch.Tensor] = {}
        self._first: list[int] = []
        self._starts: list[int | float] = []
        self._fills: set[int] = set()
        self._sources = sources
        end = 0
        for value in starts:
            shape = graph.values[value].shape
            self._starts.append(value)
            self._first.append(end)
            if value in sources and 0 < math.prod(shape) <= _MOST:
                count = math.prod(shape)
                self._numbers[value] = torch.arange(end, end + count).reshape(shape)
            else:  # one number for all of them
                count = 1
                self._numbers[value] = torch.tensor(end).expand(shape)
            end += count
        self._end = end

    def move(self, node: Node) -> None:
        elements = _elements_of(node)
        if elements == "same":
            self._numbers[node.outputs[0]] = self._numbers[next(refs_of(node.args[0]))]
            return
        if elements == "padded":
            node = self._numbered_fill(node)
        results = run_node(node, self._numbers)
        for value, numbers in zip(node.outputs, results, strict=False):
            if value >= 0:
                self._numbers[value] = numbers

    def _numbered_fill(self, node: Node) -> Node:
        """A padding that fills with a number of its own."""
        signature = signature_of(node.op)
        names = [] if signature is None else [p.name for p in signature.parameters]
        at = names.index("value")
        fill = node.args[at] if len(node.args) > at else None
        self._fills.add(len(self._starts))
        self._starts.append(float(fill) if isinstance(fill, (int, float)) else 0.0)
        self._first.append(self._end)
        self._end += 1
        between = ("constant",) if at == 3 else ()
        return replace(node, args=(*node.args[:2], *between, float(self._end - 1)))

    def origin(self, value: int) -> MovedElements:
        numbers = torch.unique(self._numbers[value])
        bounds = torch.tensor(self._first)
        owner = torch.searchsorted(bounds, numbers, right=True) - 1
        sources: dict[int, torch.Tensor] = {}
        computed: set[int] = set()
        fills: set[float] = set()
        for position in torch.unique(owner).tolist():
            start = self._starts[position]
            if position in self._fills:
                fills.add(start)
                continue
            start = int(start)
            if start in self._sources and math.prod(self._graph.values[start].shape) <= _MOST:
                sources[start] = numbers[owner == position] - self._first[position]
            else:
                computed.add(start)
        return MovedElements(sources=sources, computed=frozenset(computed), fills=frozenset(fills))
