"""Take recorded backward passes out of an exported graph.

The graph has them behind the forward pass, as :mod:`samba.tracer.custom_gradients` has left them.
Each becomes a part of its own, which computes the gradients of a marker's inputs from those of its
results and from values that are there before the marker. What lies between is computed again:

* a hook on a tensor stands right behind it, so what it reads may come later;
* a hook on a module's input may use the gradient of the module's output. A gradient that another
  part computes comes along the backward pass: as the gradient of one more result, of zeros, that
  the other part's marker takes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram

from emulator.op_facts.table import op_facts
from samba.tracer.custom_gradients import GradientRecord, GradientRecorder
from samba.tracer.errors import GradientError
from samba.tracer.marker_ops import CHECK, COTANGENT, MARKER


@dataclass(slots=True, kw_only=True)
class GradientPart:
    """A backward pass that the model defines itself.

    Args:
        record: What was recorded of it.
        marker: The node that it belongs to; its arguments are results and inputs.
        given: Nodes that stand for gradients that come in, with the results that they are of.
        gradients: The gradients of the marker's inputs.
        nodes: What it computes, in topological order; none of these is among ``given``.
    """

    record: GradientRecord
    marker: torch.fx.Node
    given: dict[torch.fx.Node, int]
    gradients: list[torch.fx.Node]
    nodes: list[torch.fx.Node] = field(default_factory=lambda: list[torch.fx.Node]())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedGraph:
    """An exported graph without backward passes.

    Args:
        nodes: The nodes of the forward pass, in order, sources and output included.
        outputs: How many of the graph's outputs are the model's.
        parts: Backward passes by their markers.
    """

    nodes: tuple[torch.fx.Node, ...]
    outputs: int
    parts: dict[torch.fx.Node, GradientPart]


def separated(
    program: ExportedProgram,
    recorder: GradientRecorder | None,
    tied: Callable[[torch.fx.Node], object],
) -> SeparatedGraph:
    """Separate the forward pass of an exported graph from its backward passes.

    Args:
        program: The exported program; its graph may be changed.
        recorder: What was recorded of it; None if nothing was.
        tied: Equal for those sources that are the same tensor.

    Raises:
        GradientError: A backward pass changes state, or needs what cannot be had.
    """
    nodes = list(program.graph.nodes)
    results: Any = nodes[-1].args[0]
    if recorder is None or not any(str(node.target) == MARKER for node in nodes):
        return SeparatedGraph(nodes=tuple(nodes), outputs=len(results), parts={})
    return _Separation(program, recorder, tied, results).run()


class _Separation:
    def __init__(
        self,
        program: ExportedProgram,
        recorder: GradientRecorder,
        tied: Callable[[torch.fx.Node], object],
        results: Sequence[torch.fx.Node],
    ) -> None:
        self._graph = program.graph
        self._tied = tied
        self._count = len(results) - recorder.outputs
        self._own = [r for r in results[: self._count] if isinstance(r, torch.fx.Node)]
        self._gradients = results[self._count :]
        self._records = {record.index: record for record in recorder.records}
        self._markers: dict[int, torch.fx.Node] = {}
        self._forward: set[torch.fx.Node] = set()
        self._order: dict[torch.fx.Node, int] = {}
        self._from: dict[torch.fx.Node, frozenset[int]] = {}

    def run(self) -> SeparatedGraph:
        for node in self._graph.nodes:
            if str(node.target) == MARKER:
                self._markers[node.args[2]] = node
        self._forward = _ancestors([*self._own, *self._checks(), *self._markers.values()])
        self._refuse_state()
        self._trace_cotangents()
        # Of hooks on one tensor the first that was put there is the first that a gradient meets.
        for record in sorted(self._records.values(), key=lambda r: -r.index):
            self._settle(record)
        for index, marker in self._markers.items():
            if index not in self._records:
                self._pass(marker, marker.args[0])  # no gradient arrives there
        parts = [self._part(record) for record in self._records.values()]
        self._carry(parts)
        self._drop_plain(parts)
        self._forward = _ancestors(
            [
                *self._output_nodes(),
                *self._checks(),
                *(p.marker for p in parts if p.marker in self._order),
            ]
        )
        nodes = [n for n in self._graph.nodes if n in self._forward or n.op != "call_function"]
        self._order = {n: i for i, n in enumerate(nodes)}
        kept = [p for p in parts if p.marker in self._order]
        for part in kept:
            self._fill(part)
        return SeparatedGraph(
            nodes=tuple(nodes), outputs=self._count, parts={p.marker: p for p in kept}
        )

    def _checks(self) -> list[torch.fx.Node]:
        """Checks of branches, which only ``forward`` has, and of which nothing depends."""
        return [node for node in self._graph.nodes if str(node.target) == CHECK]

    def _output_nodes(self) -> list[torch.fx.Node]:
        results: Any = self._graph.output_node().args[0]
        return [r for r in results[: self._count] if isinstance(r, torch.fx.Node)]

    def _refuse_state(self) -> None:
        for node in self._forward:
            if str(node.target) == COTANGENT:
                record = self._records[node.args[1]]  # pyright: ignore[reportArgumentType]  # an int
                raise GradientError(
                    where=record.source,
                    reason=f"{record.name} changes a buffer",
                    hint="State can only change in forward(). Return the gradient, and keep "
                    "statistics of gradients outside of the model.",
                    deviation="backward-changes-state",
                )

    def _trace_cotangents(self) -> None:
        """For each node, the records whose incoming gradients it is computed from."""
        nothing = frozenset[int]()
        for node in self._graph.nodes:
            self._from[node] = nothing.union(*(self._from[n] for n in node.all_input_nodes))
            if str(node.target) == COTANGENT:
                self._from[node] = frozenset([node.args[1]])

    # -- where markers stand ----------------------------------------------------

    def _settle(self, record: GradientRecord) -> None:
        """Let a marker pass on its inputs, and stand where it counts."""
        marker = self._markers[record.index]
        if not record.moves:
            return
        _, inputs, index = marker.args
        if not record.around:
            marker.args = (inputs, inputs, index)
            return
        tensor = inputs[0]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType]  # a list of one
        assert isinstance(tensor, torch.fx.Node)
        result = next(u for u in marker.users if u.target is operator.getitem)
        marker.args = ([tensor], [tensor], index)
        same = [tensor]
        after = tensor
        if tensor.op == "placeholder":
            sources = self._graph.find_nodes(op="placeholder")
            same = [s for s in sources if s is tensor or self._tied(s) == self._tied(tensor)]
            after = sources[-1]
        after.append(marker)
        marker.append(result)
        for source in same:
            source.replace_all_uses_with(result, lambda user: user is not marker)

    def _drop_plain(self, parts: Sequence[GradientPart]) -> None:
        """Take out markers that pass on both values and gradients: hooks that only watch."""
        for part in parts:
            results, inputs, _ = part.marker.args
            assert isinstance(results, (list, tuple)) and isinstance(inputs, (list, tuple))
            plain = [part.given.get(gradient) for gradient in part.gradients]
            if not part.record.moves or list(results) != list(inputs):
                continue
            if plain != list(range(len(inputs))) or len(part.given) != len(inputs):
                continue
            self._pass(part.marker, inputs)
            self._order.pop(part.marker)

    def _pass(self, marker: torch.fx.Node, results: Any) -> None:
        """Put results in the place of a marker."""
        for user in list(marker.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                self._graph.erase_node(user)

    # -- what a part computes ---------------------------------------------------

    def _part(self, record: GradientRecord) -> GradientPart:
        marker = self._markers[record.index]
        results, inputs, index = marker.args
        assert isinstance(inputs, (list, tuple))
        kept = [i for i, place in enumerate(record.gradients) if place is not None]
        gradients = [self._gradients[place] for place in record.gradients if place is not None]
        if len(kept) < len(inputs):
            if record.moves:
                results = [
                    r if i in kept else self._detached(r, marker) for i, r in enumerate(inputs)
                ]
            marker.args = (results, [inputs[i] for i in kept], index)
        given = {
            node: node.args[2]
            for node in self._graph.nodes
            if str(node.target) == COTANGENT and node.args[1] == record.index
        }
        self._order[marker] = 0
        return GradientPart(record=record, marker=marker, given=given, gradients=list(gradients))

    def _detached(self, tensor: Any, marker: torch.fx.Node) -> torch.fx.Node:
        with self._graph.inserting_before(marker):
            node = self._graph.call_function(torch.ops.aten.detach.default, (tensor,))
        node.meta = {"val": tensor.meta["val"], **_place(marker)}
        return node

    def _carry(self, parts: Sequence[GradientPart]) -> None:
        """Let gradients that one part computes and another one reads come along the way."""
        by_index = {part.record.index: part for part in parts}
        for part in parts:
            for node in self._foreign(part):
                sources = sorted(self._from[node])
                other = by_index.get(sources[0])
                dtype = node.meta["val"].dtype
                if len(sources) > 1 or other is None or not self._leads(part, other):
                    raise self._refused(part, "the gradient of another place")
                if not (dtype.is_floating_point or dtype.is_complex):
                    raise self._refused(part, f"{dtype} made of the gradient of another place")
                self._channel(part, other, node)

    def _foreign(self, part: GradientPart) -> list[torch.fx.Node]:
        """Nodes that a part takes from other parts."""
        index = part.record.index
        found: dict[torch.fx.Node, None] = {}
        pending, seen = list(part.gradients), set[torch.fx.Node]()
        while pending:
            node = pending.pop()
            if node in seen or node in part.given or node in self._forward:
                continue
            seen.add(node)
            if self._from[node] and index not in self._from[node]:
                found[node] = None
            else:
                pending += node.all_input_nodes
        order = {n: i for i, n in enumerate(self._graph.nodes)}
        return sorted(found, key=order.__getitem__)

    def _leads(self, part: GradientPart, other: GradientPart) -> bool:
        """Whether the marker of a part stands before another one's."""
        order = {n: i for i, n in enumerate(self._graph.nodes)}
        return order[part.marker] < order[other.marker]

    def _channel(self, part: GradientPart, other: GradientPart, node: torch.fx.Node) -> None:
        value = node.meta["val"]
        results, inputs, index = part.marker.args
        assert isinstance(results, (list, tuple)) and isinstance(inputs, (list, tuple))
        graph, position = self._graph, len(results)
        with graph.inserting_before(part.marker):
            zeros = graph.call_function(
                torch.ops.aten.full.default, (list(value.shape), 0.0), {"dtype": value.dtype}
            )
        zeros.meta = {"val": value, **_place(part.marker)}
        part.marker.args = ([*results, zeros], inputs, index)
        part.marker.meta["val"] = [*part.marker.meta["val"], value]
        with graph.inserting_after(part.marker):
            extra = graph.call_function(operator.getitem, (part.marker, position))
        extra.meta = {"val": value, **_place(part.marker)}
        theirs, taken, number = other.marker.args
        assert isinstance(taken, (list, tuple))
        other.marker.args = (theirs, [*taken, extra], number)
        other.gradients.append(node)
        part.given[node] = position

    def _fill(self, part: GradientPart) -> None:
        """Collect what a part computes, back to values that are there before its marker."""
        done: set[torch.fx.Node] = set()
        limit = self._order[part.marker]
        work = [(node, False) for node in reversed(part.gradients)]
        while work:
            node, ready = work.pop()
            node = passed_on(node)
            if node in done or node in part.given:
                continue
            if ready:
                done.add(node)
                part.nodes.append(node)
                continue
            if node in self._order and (self._order[node] < limit or node.op != "call_function"):
                done.add(node)
                continue  # read
            if node in self._order and not self._may_repeat(node):
                raise self._refused(part, f"the result of {node.target}, which comes later,")
            work.append((node, True))
            work += [(n, False) for n in reversed(node.all_input_nodes)]

    def _may_repeat(self, node: torch.fx.Node) -> bool:
        """Whether a node gives the same when it is computed a second time."""
        facts = op_facts().get(str(node.target))
        return facts is None or not facts.random

    def _refused(self, part: GradientPart, what: str) -> GradientError:
        return GradientError(
            where=part.record.source,
            reason=f"{part.record.name} reads {what} at a place where it cannot be had",
            hint="Let it read what forward() has computed before, and the gradients of its own "
            "outputs.",
            deviation="late-gradient-input",
        )


def passed_on(node: torch.fx.Node) -> torch.fx.Node:
    """The node that computes a value, behind any markers that pass it on."""
    while node.target is operator.getitem:
        parent: Any = node.args[0]
        if str(parent.target) != MARKER:
            break
        node = parent.args[0][node.args[1]]
    return node


def _place(node: torch.fx.Node) -> dict[str, object]:
    kept = ("nn_module_stack", "stack_trace")
    return {key: node.meta[key] for key in kept if key in node.meta}


def _ancestors(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Nodes, and all that they are computed from."""
    found: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found
