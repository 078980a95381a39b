"""Cut a graph out of traces: the nodes between the tensors it starts from and those it stops at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema.program import Arg, Node, Ref, Role, Value
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from samba.sambatensor import SambaTensor
from samba.session.graphs import GraphPart, Key, Traces, conflicts
from samba.session.known_buffers import refuse_changed_elsewhere
from samba.support.naming import Namer
from samba.tracer.inputs import NamedInput
from samba.tracer.traced import Source, Traced, TracedOutput


def parts_of(graphs: Sequence[FwdGraph], traces: Traces) -> list[GraphPart]:
    """Parts of the traces that graphs cover, checked against each other.

    Args:
        graphs: The graphs, in their order in the PEF.
        traces: All traces of the session.

    Returns:
        A part for each graph.

    Raises:
        ArgumentError: A graph starts or stops at tensors of no trace, or needs inputs that it
            does not start from.
        GraphConflict: Graphs do not go together.
    """
    parts = [_Cut(graph, traces).part() for graph in graphs]
    conflicts(parts)
    for part in parts:
        refuse_changed_elsewhere(part.traced, [p.traced for p in parts if p is not part])
    return parts


@dataclass(slots=True)
class _Needs:
    """Needs of a graph: nodes, sources other than inputs, and inputs that it does not have.

    ``ends`` are the values at which it enters a trace, coming from its stop.
    """

    nodes: set[Key] = field(default_factory=set)
    sources: set[Key] = field(default_factory=set)
    missing: dict[str, None] = field(default_factory=dict)
    ends: set[Key] = field(default_factory=set)

    def add(self, other: _Needs) -> None:
        self.nodes |= other.nodes
        self.sources |= other.sources
        self.missing |= other.missing
        self.ends |= other.ends


class _Cut:
    """Cuts out one graph.

    Args:
        graph: The graph.
        traces: The traces.
    """

    def __init__(self, graph: FwdGraph, traces: Traces) -> None:
        self._graph, self._traces = graph, traces
        self._starts: dict[Key, int] = {}
        self._namer = Namer()
        self._values: list[Value] = []
        self._numbers: dict[Key, int] = {}
        self._kept: dict[int, int] = {}

    def part(self) -> GraphPart:
        """The graph, as a trace of its own."""
        named, inputs = self._inputs()
        stops = self._stops()
        needs = self._walk(stops)
        if needs.missing:
            raise ArgumentError(
                where=self._where("start"),
                found=f"a graph that needs {', '.join(needs.missing)} too",
                wanted="every input that its stop tensors depend on",
                hint="Add them to start, or start at tensors that another graph computes.",
            )
        updates = self._updates(needs)
        sources = [*inputs, *self._sources(needs)]
        keys = sorted(needs.nodes)
        nodes = [self._node(key) for key in keys]
        numbers = sorted({number for number, _ in needs.nodes})
        traced = [self._traces.traces[n].traced for n in numbers]
        outputs = tuple(t for t in self._graph.stop if isinstance(t, SambaTensor))
        return GraphPart(
            traced=Traced(
                name=self._graph.name,
                values=tuple(self._values),
                nodes=tuple(nodes),
                inputs=tuple(s.value for s in inputs),
                sources=tuple(sources),
                outputs=tuple(
                    TracedOutput(
                        value=self._number(key),
                        name=tensor.sn_name,
                        region_name=tensor.sn_region_name,
                    )
                    for key, tensor in zip(stops, outputs, strict=True)
                ),
                updates=tuple((self._number(new), self._number(old)) for new, old in updates),
                structure="tuple",
                fusions=tuple(dict.fromkeys(f for t in traced for f in t.fusions)),
                parameter_ids=frozenset().union(*(t.parameter_ids for t in traced)),
                exempt=frozenset(
                    i
                    for i, (number, position) in enumerate(keys)
                    if position in self._traces.traces[number].traced.exempt
                ),
                known=tuple(k for t in traced for k in t.known),
            ),
            given=named,
            outputs=outputs,
        )

    def _where(self, argument: str) -> str:
        return f"FwdGraph({argument}=..., name={self._graph.name!r})"

    # -- what is given and what is wanted -----------------------------------

    def _inputs(self) -> tuple[tuple[NamedInput, ...], list[Source]]:
        named: list[NamedInput] = []
        sources: list[Source] = []
        unknown: list[str] = []
        for place, (key, tensor) in enumerate(self._graph.start.items()):
            keys = self._traces.start(tensor)
            if not keys:
                unknown.append(repr(getattr(tensor, "sn_name", "") or key))
                continue
            number, value = keys[0]
            source = self._traces.source(keys[0])
            if source is not None and source.tensor is not None:
                tensor = source.tensor
            traced, fed = self._traces.traces[number].traced, self._traces.traces[number].given
            entries = dict(zip(traced.inputs, fed.tensors, strict=True))
            old, looks = traced.values[value], traced.looks
            index = self._add(getattr(tensor, "sn_name", "") or old.name, old)
            self._starts.update(dict.fromkeys(keys, index))
            name = self._values[index].name
            region = getattr(tensor, "sn_region_name", "") or name
            named.append(
                NamedInput(
                    name=name,
                    given_name=name,
                    argument=key if isinstance(key, str) else old.name,
                    place=key if isinstance(key, int) else place,
                    region_name=region,
                    tensor=tensor,
                    requires_grad=False,
                    layout=None if looks is None else looks.of(tensor),
                    views=entries[value].views if value in entries else None,
                )
            )
            sources.append(
                Source(value=index, role=Role.INPUT, name=name, region_name=region, tensor=tensor)
            )
        if unknown:
            raise ArgumentError(
                where=self._where("start"),
                found=f"tensors of no trace: {', '.join(unknown)}",
                wanted="inputs or outputs of trace_multigraph",
                hint="Trace the module with these very tensors first.",
            )
        return tuple(named), sources

    def _stops(self) -> list[Key]:
        pairs = [(tensor, self._traces.stop(tensor)) for tensor in self._graph.stop]
        unknown = [repr(getattr(t, "sn_name", "")) for t, key in pairs if key is None]
        if unknown:
            raise ArgumentError(
                where=self._where("stop"),
                found=f"tensors that no trace computes: {', '.join(unknown)}",
                wanted="outputs of trace_multigraph",
            )
        stops = [key for _, key in pairs if key is not None]
        known = [self._values[self._starts[key]].name for key in stops if key in self._starts]
        if known:
            raise ArgumentError(
                where=self._where("stop"),
                found=f"{', '.join(known)}, where the graph starts",
                wanted="tensors that it computes from its start",
            )
        return stops

    # -- which nodes lie between --------------------------------------------

    def _resolve(self, key: Key) -> Key:
        """The value itself where a module was traced with what another trace computed."""
        while key not in self._starts:
            source = self._traces.source(key)
            origin = None if source is None else self._traces.made(source.tensor)
            if origin is None:
                break
            key = origin
        return key

    def _walk(self, keys: Sequence[Key], known: _Needs | None = None) -> _Needs:
        """Everything that values depend on, back to the start, beyond what is known already."""
        needs = _Needs(ends=set(keys))
        nodes = frozenset() if known is None else known.nodes
        pending, done = list(keys), set[Key]()
        while pending:
            key = self._resolve(pending.pop())
            if key in done or key in self._starts:
                continue
            done.add(key)
            number = key[0]
            producer = self._traces.producer(key)
            source = self._traces.source(key)
            if (number, producer) in nodes:
                continue
            if producer >= 0:
                needs.nodes.add((number, producer))
                for value in self._traces.traces[number].traced.nodes[producer].refs():
                    pending.append((number, value))
                    if self._resolve((number, value))[0] != number:
                        needs.ends.add(self._resolve((number, value)))
            elif source is not None and source.role is Role.INPUT:
                needs.missing[source.name] = None
            elif source is not None:
                needs.sources.add(key)
        return needs

    def _updates(self, needs: _Needs) -> list[tuple[Key, Key]]:
        """State that the graph changes: where a node between its start and its stop does."""
        updates: list[tuple[Key, Key]] = []
        for number in sorted({number for number, _ in needs.ends}):
            first, last = self._bounds(number, needs)
            for new, old in self._traces.traces[number].traced.updates:
                state = self._traces.source((number, old))
                at = self._traces.producer((number, new))
                seed = state is not None and state.role is Role.SEED
                if looks := check_inputs(self._traces.traces[number].traced, at):
                    if self._has_check((number, at), looks, needs):
                        needs.add(self._walk([(number, new)], needs))
                        needs.sources.add((number, old))
                        updates.append(((number, new), (number, old)))
                    continue
                if (seed and (number, at) in needs.nodes) or (not seed and first < at <= last):
                    more = self._walk([(number, new)], needs)
                    if not more.missing:
                        needs.add(more)
                        needs.sources.add((number, old))
                        updates.append(((number, new), (number, old)))
                elif not seed and at <= first and (number, old) in needs.sources:
                    raise ArgumentError(
                        where=self._where("start"),
                        found=f"tensors computed after {state.name if state else ''} is changed",
                        wanted="a graph that reads state before the same pass changes it",
                        hint="Start earlier, or make the state an input and an output.",
                    )
        return updates

    def _has_check(self, check: Key, looks: frozenset[int], needs: _Needs) -> bool:
        """Whether the check of a branch belongs to the graph: it has all that the check looks at.

        Raises:
            ArgumentError: It has a part of that, so that no graph can make the check.
        """
        number, position = check
        keys = [(number, value) for value in looks]
        missing = self._walk(keys, needs).missing
        computed = [k for k in keys if (number, self._traces.producer(k)) in needs.nodes]
        if missing and computed:
            line = self._traces.traces[number].traced.nodes[position].source or "forward()"
            raise ArgumentError(
                where=self._where("start"),
                found=f"a branch at {line} that depends on {', '.join(missing)}, too",
                wanted="every input that a branch of the graph depends on",
                hint="Add them to start, or start the graph after the branch.",
            )
        return not missing and all(
            (number, self._traces.producer(k)) in needs.nodes
            or self._resolve(k) in self._starts
            or self._traces.producer(k) < 0
            for k in keys
        )

    def _bounds(self, number: int, needs: _Needs) -> tuple[int, float]:
        """The last node of a trace before the graph, and the last one in it."""
        producer = self._traces.producer
        first = max((producer(key) for key in self._starts if key[0] == number), default=-1)
        last = max(producer(key) for key in needs.ends if key[0] == number)
        outputs = self._traces.traces[number].traced.outputs
        whole = all(producer((number, o.value)) <= last for o in outputs)
        return first, math.inf if whole else last

    # -- the graph with numbers of its own ----------------------------------

    def _add(self, name: str, value: Value) -> int:
        name = self._namer.unique(name)
        self._values.append(Value(name=name, shape=value.shape, dtype=value.dtype))
        return len(self._values) - 1

    def _number(self, key: Key) -> int:
        key = self._resolve(key)
        start = self._starts.get(key)
        return self._numbers[key] if start is None else start

    def _sources(self, needs: _Needs) -> list[Source]:
        sources: list[Source] = []
        for key in sorted(needs.sources):
            source = self._traces.source(key)
            if source is None:
                continue
            is_state = source.role in (Role.WEIGHT, Role.BUFFER)
            if is_state and id(source.tensor) in self._kept:
                self._numbers[key] = self._kept[id(source.tensor)]
                continue
            number, value = key
            index = self._add(source.name, self._traces.traces[number].traced.values[value])
            self._numbers[key] = index
            if is_state:
                self._kept[id(source.tensor)] = index
            region = _region(source.tensor) or source.region_name
            sources.append(replace(source, value=index, region_name=region))
        return sources

    def _node(self, key: Key) -> Node:
        number, position = key
        traced = self._traces.traces[number].traced
        node = traced.nodes[position]
        args = tuple(self._arg(number, arg) for arg in node.args)
        kwargs = tuple((name, self._arg(number, arg)) for name, arg in node.kwargs)
        for value in node.outputs:
            if value >= 0:
                old = traced.values[value]
                self._numbers[(number, value)] = self._add(old.name, old)
        outputs = tuple(v if v < 0 else self._numbers[(number, v)] for v in node.outputs)
        return replace(node, args=args, kwargs=kwargs, outputs=outputs)

    def _arg(self, number: int, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(self._number((number, arg.value)))
        if isinstance(arg, tuple):
            return tuple(self._arg(number, item) for item in arg)
        return arg


def _region(tensor: torch.Tensor | None) -> str:
    return getattr(tensor, "sn_region_name", "")


def check_inputs(traced: Traced, position: int) -> frozenset[int]:
    """The values from which a check is computed by nodes that serve checks alone.

    Args:
        traced: A trace.
        position: Of a node in it; -1 for what no node makes, such as an input.

    Returns:
        Values that a source gives, or that other nodes or results depend on, too; nothing if the
        node is not a check.
    """
    if position < 0 or traced.nodes[position].op != CHECKED_BRANCH:
        return frozenset()
    own = _for_checks(traced)
    producer = {value: i for i, node in enumerate(traced.nodes) for value in node.outputs}
    pending = [_condition(traced.nodes[position])]
    values: set[int] = set()
    while pending:
        value = pending.pop()
        if producer.get(value, -1) in own:
            pending += traced.nodes[producer[value]].refs()
        else:
            values.add(value)
    return frozenset(values)


def _condition(check: Node) -> int:
    condition = check.args[1]
    assert isinstance(condition, Ref)  # as the tracer writes it
    return condition.value


def _for_checks(traced: Traced) -> set[int]:
    """Nodes of which nothing but checks depends."""
    needed = {output.value for output in traced.outputs}
    needed |= {new for new, _ in traced.updates}
    positions: set[int] = set()
    for position in range(len(traced.nodes) - 1, -1, -1):
        node = traced.nodes[position]
        if node.op == CHECKED_BRANCH:
            continue
        if needed.intersection(node.outputs):
            needed.update(node.refs())
        else:
            positions.add(position)
    return positions
