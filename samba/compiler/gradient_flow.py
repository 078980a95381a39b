"""Where gradients flow: values that carry one, losses, what is refused, and the state they read.

A backward section finds the new contents of a buffer that the forward pass has changed in the
buffer's region. Where a gradient reads the old ones, these get a value of their own, which is
stored like any other value that the backward pass needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace

from emulator.op_facts.facts import OpFacts, gradient_reads
from emulator.op_facts.names import ALIAS
from emulator.op_facts.table import facts_of, op_facts
from pef_schema.errors import SambaError
from pef_schema.module_paths import plain_path
from pef_schema.program import DType, Node, Ref, Role, Value, refs_of
from samba.compiler.rounding import mapped
from samba.support.naming import Namer
from samba.tracer.errors import StateGradient
from samba.tracer.traced import Source, Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFlow:
    """A traced graph, and where gradients flow in it.

    Args:
        traced: The graph.
        source_of: The sources, by value.
        grads: For each value, whether a gradient flows through it.
        losses: Positions of the outputs whose gradients start as ones.
        state: Names of the regions that are an output of some graph of the program and an input
            of some graph: what one run writes there, the next one reads.
        overwritten: Sources whose region holds something else after the forward pass.
    """

    traced: Traced
    source_of: Mapping[int, Source]
    grads: tuple[bool, ...]
    losses: frozenset[int]
    state: frozenset[str]
    overwritten: frozenset[int]

    def is_state(self, source: Source) -> bool:
        """Whether a source is an input that some graph of the program writes."""
        return source.role is Role.INPUT and source.region_name in self.state

    def starts_backward(self, value: int) -> bool:
        """Whether a gradient can start from a result: it is computed, and depends on a weight."""
        return self.grads[value] and value not in self.source_of


def find_gradient_flow(
    traced: Traced,
    *,
    inference: bool,
    loss_indices: tuple[int, ...] | None,
    state: frozenset[str],
) -> GradientFlow:
    """Find the values that gradients flow through, and the losses that they start from.

    Args:
        traced: The graph.
        inference: Whether there are no gradients.
        loss_indices: Outputs that are losses; None to find them by shape.
        state: Names of the regions that are an output and an input of the program's graphs.

    Returns:
        The graph, in which gradients find the state that they read.

    Raises:
        BadLossIndex: If there is no output of a given number.
        ComplexLoss: If one of those given is complex.
        StateGradient: If a loss depends on a buffer that is given something with a gradient.
        NoDerivative: If a loss has a gradient that torch does not compute.
    """
    if not inference:
        traced = with_kept_state(traced)
    source_of = {s.value: s for s in traced.sources}
    starts = [o.value for o in traced.outputs if o.value not in source_of]
    grads = [False] * len(traced.values)
    if not inference:
        grads = gradient_values(traced, op_facts(), starts)
    losses = _chosen_losses(traced, {v for v in starts if grads[v]}, loss_indices)
    if not inference:
        _refuse_state_gradients(traced, [traced.outputs[i].value for i in losses])
        _refuse_underivable(traced, losses)
    return GradientFlow(
        traced=traced,
        source_of=source_of,
        grads=tuple(grads),
        losses=losses,
        state=state,
        overwritten=_overwritten_sources(traced, state & {o.region_name for o in traced.outputs}),
    )


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


class BadLossIndex(SambaError):
    """``loss_indices`` names an output that the model does not have."""

    def __init__(self, *, found: tuple[int, ...], outputs: int) -> None:
        self.found, self.outputs = found, outputs
        super().__init__(
            f"loss_indices: found {list(found)}; the model has {outputs} output(s), "
            f"so numbers from 0 to {outputs - 1} are expected"
        )


class ComplexLoss(SambaError):
    """``loss_indices`` names an output that is complex, from which torch starts no gradient."""

    def __init__(self, *, index: int, name: str, dtype: DType) -> None:
        self.index, self.name, self.dtype = index, name, dtype
        super().__init__(
            f"loss_indices: output {index} ({name}) is {dtype.name.lower()}, expected real "
            "numbers, since the gradient of a loss starts from ones. Return its real part or "
            "absolute value; a gradient for the complex output itself goes into its sn_grad."
        )


def _chosen_losses(
    traced: Traced, able: AbstractSet[int], indices: tuple[int, ...] | None
) -> frozenset[int]:
    """The outputs whose gradients start as ones.

    Those given; else, among the real floating outputs that are ``able`` to start a backward pass,
    the scalars if there are any and all of them otherwise.
    """
    outputs = traced.outputs
    if indices is not None:
        if any(i < 0 or i >= len(outputs) for i in indices):
            raise BadLossIndex(found=indices, outputs=len(outputs))
        for i in indices:
            dtype = traced.values[outputs[i].value].dtype
            if dtype.is_complex:
                raise ComplexLoss(index=i, name=outputs[i].name, dtype=dtype)
        return frozenset(indices)
    # A scalar without a gradient, such as an accuracy, is not a loss: backward from it is nothing.
    candidates = [
        i
        for i, o in enumerate(outputs)
        if o.value in able and traced.values[o.value].dtype.is_floating
    ]
    scalars = [i for i in candidates if traced.values[outputs[i].value].shape == ()]
    return frozenset(scalars or candidates)


class NoDerivative(SambaError):
    """A gradient flows through an operation that has no derivative in torch.

    Attributes:
        op, source, module: The node.
    """

    deviation = "no-derivative"

    def __init__(self, *, model: str, node: Node) -> None:
        self.op, self.source, self.module = node.op, node.source, node.module
        where = node.source or plain_path(node.module) or "an unknown line"
        super().__init__(
            f"model {model}, {where}: a gradient flows through {node.op}, for which torch has no "
            "derivative, so its backward pass raises; call detach() on its input or its result"
        )


def _refuse_underivable(traced: Traced, losses: Collection[int]) -> None:
    """Raise if a loss has a gradient that torch does not compute.

    Without a loss, each floating output counts, or the scalars if there are any. The error names
    the last such node, at which a backward pass arrives first.
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


def _refuse_state_gradients(traced: Traced, losses: Iterable[int]) -> None:
    """Refuse state that carries a gradient from step to step, to one of some values."""
    sources = {source.value: source for source in traced.sources}
    makers = {v: node for node in traced.nodes for v in node.outputs if v >= 0}
    states = {
        old: new
        for new, old in traced.updates
        if old in sources and sources[old].path in traced.graded_state and new in makers
    }
    if not states:
        return
    wanting = [
        replace(source, requires_grad=source.requires_grad or source.value in states)
        for source in traced.sources
    ]
    reached = gradient_values(replace(traced, sources=tuple(wanting)), op_facts(), list(losses))
    differentiated = [old for old in states if reached[old]]
    if differentiated:
        lines = dict.fromkeys(makers[states[old]].source for old in differentiated)
        raise StateGradient(
            where=", ".join(filter(None, lines)) or f"model {traced.name}",
            buffers=tuple(sources[old].path or sources[old].name for old in differentiated),
        )


def _overwritten_sources(traced: Traced, written: frozenset[str] = frozenset()) -> frozenset[int]:
    """Sources whose place in memory holds something else after the forward pass.

    The seed is none of them: it is advanced before anything reads it. ``written`` names regions
    that are written otherwise than by updates.
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
    read = _read_by_gradients(traced) & _overwritten_sources(traced)
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
