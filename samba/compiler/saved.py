"""What a backward section needs from the forward pass: read, recompute or save.

A value that a gradient reads is read from its region if it has one, executed
again if that is cheap and costs no more memory than keeping it, and saved in an
activation region otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emulator.op_facts.facts import OpFacts
from pef_schema.program import Node, Value
from samba.compiler.flow import gradient_reads


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardNeeds:
    """What the mirror of one forward section needs.

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


def backward_needs(
    section: range,
    *,
    nodes: Sequence[Node],
    values: Sequence[Value],
    ops: Mapping[str, OpFacts],
    grads: Sequence[bool],
    stored: frozenset[int],
) -> BackwardNeeds:
    """Decide for one forward section what its backward section reads and recomputes.

    Args:
        section: Node indices of the forward section.
        nodes, values, ops: Graph and registry.
        grads: Per value, whether a gradient flows through it.
        stored: Values that are in device memory anyway: sources and boundary values.

    Returns:
        The decision.
    """
    producer = {v: i for i in section for v in nodes[i].outputs if v >= 0}
    differentiate = tuple(
        i
        for i in section
        if any(v >= 0 and grads[v] for v in nodes[i].outputs)
        and any(grads[v] for v in nodes[i].refs())
    )
    needed: set[int] = set()
    for i in differentiate:
        needed.update(gradient_reads(nodes[i], ops[nodes[i].op], grads))

    def size(value: int) -> int:
        return math.prod(values[value].shape) * values[value].dtype.itemsize

    reads: set[int] = set()
    saves: set[int] = set()
    recompute: set[int] = set()
    # Consumers come before producers, so that a value's inputs are judged after it.
    for value in sorted(needed, key=lambda v: (producer.get(v, -1), v), reverse=True):
        _place(value, producer, needed, stored, nodes, ops, size, reads, saves, recompute)
    return BackwardNeeds(
        nodes=differentiate,
        recompute=tuple(sorted(recompute)),
        reads=frozenset(reads),
        saves=frozenset(saves),
    )


def _place(
    value: int,
    producer: Mapping[int, int],
    needed: set[int],
    stored: frozenset[int],
    nodes: Sequence[Node],
    ops: Mapping[str, OpFacts],
    size: Callable[[int], int],
    reads: set[int],
    saves: set[int],
    recompute: set[int],
) -> None:
    """Decide one value; values its recomputation needs are decided in turn."""
    work = [value]
    while work:
        v = work.pop()
        if v in reads:
            continue
        if v in stored or v not in producer:
            reads.add(v)
            continue
        i = producer[v]
        if i in recompute:
            continue
        if ops[nodes[i].op].cheap:
            inputs = set(nodes[i].refs())
            extra = sum(
                size(u) for u in inputs if u not in needed and u not in stored and u in producer
            )
            if extra < size(v):
                recompute.add(i)
                needed.update(inputs)
                work.extend(sorted(inputs, reverse=True))
                continue
        reads.add(v)
        saves.add(v)
