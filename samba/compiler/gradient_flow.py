"""The values that carry a gradient, gradients that are refused, and state that gradients read.

A backward section finds the new contents of a buffer that the forward pass has changed in the
buffer's region. Where a gradient reads the old ones, these get a value of their own, which is
stored like any other value that the backward pass needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from emulator.op_facts.facts import OpFacts, gradient_reads
from emulator.op_facts.names import ALIAS
from emulator.op_facts.table import facts_of, op_facts
from pef_schema.errors import SambaError
from pef_schema.program import Node, Ref, Role, Value, refs_of
from samba.compiler.rounding import mapped
from samba.tracer.errors import StateGradient
from samba.tracer.names import Namer
from samba.tracer.traced import Traced


def gradient_values(
    traced: Traced, ops: Mapping[str, OpFacts], outputs: Sequence[int]
) -> list[bool]:
    """Mark the values a gradient flows through.

    Args:
        traced: The graph.
        ops: Facts of all ops.
        outputs: Values from which the backward pass starts.

    Returns:
        One flag per value: it depends on something that wants a gradient, and an output
        depends on it.
    """
    wants = [False] * len(traced.values)
    for source in traced.sources:
        wants[source.value] = (
            source.requires_grad and traced.values[source.value].dtype.has_gradient
        )
    for node in traced.nodes:
        if ops[node.op].differentiable and any(wants[v] for v in node.refs()):
            for v in node.outputs:
                if v >= 0 and traced.values[v].dtype.has_gradient:
                    wants[v] = True
    reached = [False] * len(traced.values)
    for v in outputs:
        reached[v] = wants[v]
    for node in reversed(traced.nodes):
        if any(v >= 0 and reached[v] for v in node.outputs):
            for v in node.refs():
                reached[v] = reached[v] or wants[v]
    return reached


class NoDerivative(SambaError):
    """A gradient flows through an operation of which torch has no derivative.

    Attributes:
        op, source, module: The node.
    """

    deviation = "no-derivative"

    def __init__(self, *, model: str, node: Node) -> None:
        self.op, self.source, self.module = node.op, node.source, node.module
        where = node.source or node.module or "an unknown line"
        super().__init__(
            f"model {model}, {where}: a gradient flows through {node.op}, for which torch has no "
            "derivative, so its backward pass raises; call detach() on its input or its result"
        )


def refuse_underivable(traced: Traced, losses: Collection[int]) -> None:
    """Raise if a loss has a gradient that torch does not compute.

    Args:
        traced: The graph.
        losses: Positions of the losses among the outputs; without one, each floating output counts,
            or the scalars if there are any.

    Raises:
        NoDerivative: For the last such node, at which a backward pass arrives first.
    """
    if not any(facts_of(node.op).no_derivative for node in traced.nodes):
        return
    able = {
        op: replace(facts, differentiable=True) if facts.no_derivative else facts
        for op, facts in op_facts().items()
    }
    outputs = [traced.outputs[i].value for i in sorted(losses)] or _scalars_first(traced)
    flows = gradient_values(traced, able, outputs)
    wants = gradient_values(traced, able, range(len(traced.values)))
    for node in reversed(traced.nodes):
        if not any(v >= 0 and flows[v] for v in node.outputs):
            continue
        for place in facts_of(node.op).no_derivative:
            if place < len(node.args) and any(wants[v] for v in refs_of(node.args[place])):
                raise NoDerivative(model=traced.name, node=node)


def _scalars_first(traced: Traced) -> list[int]:
    floating = [o.value for o in traced.outputs if traced.values[o.value].dtype.is_floating]
    return [v for v in floating if traced.values[v].shape == ()] or floating


def refuse_state_gradients(traced: Traced, losses: Iterable[int]) -> None:
    """Refuse state that carries a gradient from step to step.

    Args:
        traced: A traced graph.
        losses: The values from which the backward pass starts.

    Raises:
        StateGradient: If a loss depends on a buffer that is given something with a gradient.
    """
    sources = {source.value: source for source in traced.sources}
    made = {v: node for node in traced.nodes for v in node.outputs if v >= 0}
    held = {
        old: new
        for new, old in traced.updates
        if old in sources and sources[old].path in traced.graded_state and new in made
    }
    if not held:
        return
    wanting = [
        replace(source, requires_grad=source.requires_grad or source.value in held)
        for source in traced.sources
    ]
    reached = gradient_values(replace(traced, sources=tuple(wanting)), op_facts(), list(losses))
    found = [old for old in held if reached[old]]
    if found:
        lines = dict.fromkeys(made[held[old]].source for old in found)
        raise StateGradient(
            where=", ".join(filter(None, lines)) or f"model {traced.name}",
            buffers=tuple(sources[old].path or sources[old].name for old in found),
        )


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
