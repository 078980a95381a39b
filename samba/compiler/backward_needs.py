"""Find out what a backward section needs of the forward pass: to read, recompute or save.

A value that a gradient reads is read from its region if it has one, executed
again if that is cheap and costs no more memory than keeping it, and saved in an
activation region otherwise. What is made of state that the forward pass overwrites is
never executed again: its region holds the new state by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.table import op_facts
from samba.compiler.sectioned import SectionedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardNeeds:
    """The needs of the backward pass of one section.

    Args:
        nodes: Forward nodes to differentiate, in forward order.
        recompute: Forward nodes to execute again, in forward order.
        reads: Values to read from device memory.
        saves: Those of ``reads`` that the forward section must write for it.
    """

    nodes: tuple[int, ...]
    recompute: tuple[int, ...]
    reads: frozenset[int]
    saves: frozenset[int]


def backward_needs(graph: SectionedGraph, stored: frozenset[int]) -> tuple[BackwardNeeds, ...]:
    """Decide for each section what its backward section reads, recomputes and has saved.

    Args:
        graph: The graph.
        stored: Values that are in device memory anyway: sources and boundary values.

    Returns:
        The decisions, by section.
    """
    return tuple(_section_needs(graph, section, stored) for section in graph.sections)


def _section_needs(graph: SectionedGraph, section: range, stored: frozenset[int]) -> BackwardNeeds:
    nodes, grads, facts = graph.traced.nodes, graph.grads, op_facts()
    differentiate = tuple(
        i
        for i in section
        if any(v >= 0 and grads[v] for v in nodes[i].outputs)
        and any(grads[v] for v in nodes[i].refs())
    )
    decisions = _Decisions(graph, section, stored)
    decisions.decide(
        {
            v
            for i in differentiate
            for v in gradient_reads(nodes[i], facts[nodes[i].op], grads.__getitem__)
        }
    )
    return BackwardNeeds(
        nodes=differentiate,
        recompute=tuple(sorted(decisions.recompute)),
        reads=frozenset(decisions.reads),
        saves=frozenset(decisions.saves),
    )


class _Decisions:
    """The decisions of one section, each of which knows those before it.

    Args:
        graph: The graph.
        section: Positions of the section's nodes.
        stored: Values that are in device memory anyway.
    """

    def __init__(self, graph: SectionedGraph, section: range, stored: frozenset[int]) -> None:
        self._nodes, self._values = graph.traced.nodes, graph.traced.values
        self._producer = {v: i for i in section for v in self._nodes[i].outputs if v >= 0}
        self._stored, self._overwritten = stored, graph.overwritten
        self._needed: set[int] = set()
        self.reads: set[int] = set()
        self.saves: set[int] = set()
        self.recompute: set[int] = set()

    def decide(self, needed: set[int]) -> None:
        """Decide about values whose contents gradients read."""
        self._needed |= needed
        # Consumers come before producers, so that a value's inputs are judged after it.
        for value in sorted(needed, key=lambda v: (self._producer.get(v, -1), v), reverse=True):
            self._decide(value)

    def _decide(self, value: int) -> None:
        """Decide about one value, and then about those that computing it again takes."""
        work = [value]
        while work:
            v = work.pop()
            if v in self.reads:
                continue
            if self._is_at_hand(v):
                self.reads.add(v)
            elif self._producer[v] in self.recompute:
                continue
            elif self._is_worth_recomputing(v):
                inputs = set(self._nodes[self._producer[v]].refs())
                self.recompute.add(self._producer[v])
                self._needed |= inputs
                work.extend(sorted(inputs, reverse=True))
            else:
                self.reads.add(v)
                self.saves.add(v)

    def _is_at_hand(self, value: int) -> bool:
        return value in self._stored or value not in self._producer

    def _is_worth_recomputing(self, value: int) -> bool:
        """Whether a value is cheap to make of values that together are smaller than it."""
        node = self._nodes[self._producer[value]]
        if not op_facts()[node.op].cheap or not self._overwritten.isdisjoint(node.refs()):
            return False
        more = {v for v in node.refs() if v not in self._needed and not self._is_at_hand(v)}
        return sum(map(self._size, more)) < self._size(value)

    def _size(self, value: int) -> int:
        return math.prod(self._values[value].shape) * self._values[value].dtype.itemsize
