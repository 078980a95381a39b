"""Keep what a buffer holds before the forward pass changes it, where a gradient reads that.

A backward section finds the new contents in the buffer's region. So the old ones get a value of
their own, which is stored like any other value that the backward pass needs.
"""

from __future__ import annotations

from dataclasses import replace

from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.names import ALIAS
from emulator.op_facts.table import op_facts
from pef_schema.program import Node, Ref, Role, Value
from samba.compiler.gradient_flow import gradient_values
from samba.compiler.rounding import mapped
from samba.tracer.names import Namer
from samba.tracer.traced import Traced


def overwritten_sources(traced: Traced, written: frozenset[str] = frozenset()) -> frozenset[int]:
    """Sources whose place in memory holds something else after the forward pass.

    The seed is none of them: it is advanced before anything reads it.

    Args:
        traced: A traced graph.
        written: Names of the regions that are written otherwise than by its updates.

    Returns:
        The sources, as values.
    """
    names = {s.value: s.region_name for s in traced.sources if s.role is not Role.SEED}
    written |= {names[old] for _, old in traced.updates if old in names}
    return frozenset(value for value, name in names.items() if name in written)


def with_kept_state(traced: Traced) -> Traced:
    """Give a value of its own to what each changed buffer held, where a gradient reads that.

    Args:
        traced: A traced graph, with all rounding that it is to have.

    Returns:
        The graph in which all operations read that value; the same one if there is none.
    """
    read = _read_by_gradients(traced) & overwritten_sources(traced)
    return _with_copies(traced, read) if read else traced


def _read_by_gradients(traced: Traced) -> frozenset[int]:
    """Values that are read by the gradients of the operations that take them."""
    facts, sources = op_facts(), {source.value for source in traced.sources}
    starts = [o.value for o in traced.outputs if o.value not in sources]
    grads = gradient_values(traced, facts, starts)
    return frozenset(
        v
        for node in traced.nodes
        if any(o >= 0 and grads[o] for o in node.outputs) and any(grads[v] for v in node.refs())
        for v in gradient_reads(_without_statistics(node), facts[node.op], grads.__getitem__)
    )


_ADVANCES: dict[str, tuple[int, tuple[int, ...]]] = {
    "aten._native_batch_norm_legit_functional.default": (5, (3, 4)),
}
"""Operations that advance statistics and compute nothing else from them, where the argument at the
first position is set; the others are those of the statistics."""


def _without_statistics(node: Node) -> Node:
    """A node without arguments that it only advances."""
    flag, statistics = _ADVANCES.get(node.op, (-1, ()))
    if not statistics or node.args[flag] is not True:
        return node
    args = (None if p in statistics else arg for p, arg in enumerate(node.args))
    return replace(node, args=tuple(args))


def _with_copies(traced: Traced, sources: frozenset[int]) -> Traced:
    """The graph in which operations read copies of sources, each made before its first reader."""
    namer = Namer()
    for value in traced.values:
        namer.unique(value.name)
    values: list[Value] = list(traced.values)
    nodes: list[Node] = []
    exempt: set[int] = set()
    copies: dict[int, int] = {}

    def now(value: int) -> int:
        return copies.get(value, value)

    for i, node in enumerate(traced.nodes):
        for v in dict.fromkeys(node.refs()):
            if v in sources and v not in copies:
                copies[v] = len(values)
                values.append(replace(values[v], name=namer.unique(f"{values[v].name}__before")))
                nodes.append(
                    Node(
                        op=ALIAS,
                        args=(Ref(v),),
                        outputs=(copies[v],),
                        module=node.module,
                        source=node.source,
                    )
                )
        if i in traced.exempt:
            exempt.add(len(nodes))
        args = tuple(mapped(arg, now) for arg in node.args)
        kwargs = tuple((name, mapped(arg, now)) for name, arg in node.kwargs)
        nodes.append(replace(node, args=args, kwargs=kwargs))
    return replace(traced, values=tuple(values), nodes=tuple(nodes), exempt=frozenset(exempt))
