"""Take recorded backward passes out of an exported graph.

The graph has them behind the forward pass, as :mod:`samba.tracer.backward_passes` has left them.
Each becomes a part of its own, which computes the gradients of a marker's inputs from those of its
results and from values that are there before the marker. What lies between is computed again:

* a hook on a tensor stands right behind it, so what it reads may come later;
* a hook on a module's input may use the gradient of the module's output. A gradient that another
  part computes comes along the backward pass: as the gradient of one more result, of zeros, that
  the other part's marker takes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from emulator.op_facts.table import op_facts
from samba.tracer.backward_passes import GradientRecord, changes_state
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.errors import GradientError
from samba.tracer.marker_ops import CHECK, COTANGENT, MARKER
from samba.tracer.nodes import ancestors, call_like, places_of

_NOTHING = frozenset[int]()


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
    marker: Node
    given: dict[Node, int]
    gradients: list[Node]
    nodes: list[Node] = field(default_factory=lambda: list[Node]())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedGraph:
    """An exported graph without backward passes.

    Args:
        program: The exported program.
        nodes: The nodes of the forward pass, in order, sources and output included.
        outputs: How many of the graph's outputs are the model's.
        parts: Backward passes by their markers.
    """

    program: ExportedProgram
    nodes: tuple[Node, ...]
    outputs: int
    parts: dict[Node, GradientPart]


def separated(
    program: ExportedProgram, recorder: GradientRecorder, model: torch.nn.Module
) -> SeparatedGraph:
    """Separate the forward pass of an exported graph from its backward passes.

    Args:
        program: The exported program; its graph may be changed.
        recorder: What was recorded of it.
        model: The model, for its parameters.

    Raises:
        GradientError: A backward pass changes state, or needs values that are not available.
    """
    graph = program.graph
    markers = {node.args[2]: node for node in _calls_of(MARKER, graph)}
    if not markers:
        nodes, count = tuple(graph.nodes), len(_results(graph))
        return SeparatedGraph(program=program, nodes=nodes, outputs=count, parts={})
    count = len(_results(graph)) - recorder.outputs
    records = {record.index: record for record in recorder.records}
    gradients = _results(graph)[count:]
    forward = ancestors([*_ends(graph, count), *markers.values()])
    _refuse_state(forward, records)
    origins = _origins(graph)
    sources = _same_tensors(program, model)
    # Of hooks on one tensor the first that was put there is the first that a gradient meets.
    for index in sorted(records, reverse=True):
        _settle(markers[index], records[index], sources)
    for index, marker in markers.items():
        if index not in records:
            _pass(marker, marker.args[0])  # no gradient arrives there
    parts = [_part(markers[index], record, gradients) for index, record in records.items()]
    _carry(parts, forward, origins)
    parts = [part for part in parts if not _passes_all(part)]
    forward = ancestors([*_ends(graph, count), *(part.marker for part in parts)])
    nodes = tuple([n for n in graph.nodes if n in forward or n.op != "call_function"])
    order = {node: place for place, node in enumerate(nodes)}
    parts = [part for part in parts if part.marker in order]
    for part in parts:
        part.nodes.extend(_computed(part, order))
    by_marker = {part.marker: part for part in parts}
    return SeparatedGraph(program=program, nodes=nodes, outputs=count, parts=by_marker)


def _results(graph: Graph) -> Sequence[Any]:
    return graph.output_node().args[0]  # pyright: ignore[reportReturnType]  # a tuple


def _calls_of(op: str, graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if str(node.target) == op]


def _ends(graph: Graph, count: int) -> list[Node]:
    """What ``forward`` is traced for: its results, and checks, which nothing depends on."""
    own = [result for result in _results(graph)[:count] if isinstance(result, Node)]
    return [*own, *_calls_of(CHECK, graph)]


def _refuse_state(forward: AbstractSet[Node], records: Mapping[int, GradientRecord]) -> None:
    for node in forward:
        if str(node.target) == COTANGENT:
            record = records[node.args[1]]  # pyright: ignore[reportArgumentType]  # an int
            raise changes_state(record.source, f"{record.name} changes a buffer")


def _origins(graph: Graph) -> dict[Node, frozenset[int]]:
    """For each node, the records whose incoming gradients it is computed from."""
    origins: dict[Node, frozenset[int]] = {}
    for node in graph.nodes:
        origins[node] = _NOTHING.union(*(origins[source] for source in node.all_input_nodes))
        if str(node.target) == COTANGENT:
            origins[node] = frozenset([node.args[1]])
    return origins


# -- where markers stand ----------------------------------------------------------------


def _same_tensors(program: ExportedProgram, model: torch.nn.Module) -> list[list[Node]]:
    """The inputs of a graph, in its order; several names of one parameter are together."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    groups: dict[object, list[Node]] = {}
    for source in program.graph.find_nodes(op="placeholder"):
        spec = specs[source.name]
        is_parameter = spec.kind is InputKind.PARAMETER
        key = id(model.get_parameter(spec.target or "")) if is_parameter else source
        groups.setdefault(key, []).append(source)
    return list(groups.values())


def _settle(marker: Node, record: GradientRecord, inputs_of_graph: list[list[Node]]) -> None:
    """Let a marker pass on its inputs, and stand where it counts."""
    if not record.moves:
        return
    _, inputs, index = marker.args
    if not record.around:
        marker.args = (inputs, inputs, index)
        return
    tensor = inputs[0]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType]  # a list of one
    assert isinstance(tensor, Node)
    result = next(u for u in marker.users if u.target is operator.getitem)
    marker.args = ([tensor], [tensor], index)
    same = next((group for group in inputs_of_graph if tensor in group), [tensor])
    after = tensor
    if tensor.op == "placeholder":
        after = marker.graph.find_nodes(op="placeholder")[-1]
    after.append(marker)
    marker.append(result)
    for source in same:
        source.replace_all_uses_with(result, lambda user: user is not marker)


def _passes_all(part: GradientPart) -> bool:
    """Whether a marker passes on both values and gradients (a hook that watches); then it goes."""
    results, inputs, _ = part.marker.args
    assert isinstance(results, (list, tuple)) and isinstance(inputs, (list, tuple))
    plain = [part.given.get(gradient) for gradient in part.gradients]
    if not part.record.moves or list(results) != list(inputs):
        return False
    if plain != list(range(len(inputs))) or len(part.given) != len(inputs):
        return False
    _pass(part.marker, inputs)
    return True


def _pass(marker: Node, results: Any) -> None:
    """Put results in the place of a marker."""
    for user in list(marker.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])
            marker.graph.erase_node(user)


# -- what a part computes ---------------------------------------------------------------


def _part(marker: Node, record: GradientRecord, outputs: Sequence[Any]) -> GradientPart:
    results, inputs, index = marker.args
    assert isinstance(inputs, (list, tuple))
    wanting = [i for i, place in enumerate(record.gradients) if place is not None]
    gradients = [outputs[place] for place in record.gradients if place is not None]
    if len(wanting) < len(inputs):
        if record.moves:
            with marker.graph.inserting_before(marker):
                results = [
                    r if i in wanting else call_like(marker, torch.ops.aten.detach.default, r)
                    for i, r in enumerate(inputs)
                ]
        marker.args = (results, [inputs[i] for i in wanting], index)
    cotangents: dict[Any, Any] = {
        node: node.args[2]
        for node in _calls_of(COTANGENT, marker.graph)
        if node.args[1] == record.index
    }
    return GradientPart(record=record, marker=marker, given=cotangents, gradients=gradients)


def _carry(
    parts: Sequence[GradientPart],
    forward: AbstractSet[Node],
    origins: Mapping[Node, frozenset[int]],
) -> None:
    """Let gradients that one part computes and another one reads come along the way."""
    by_index = {part.record.index: part for part in parts}
    for part in parts:
        for node in _foreign(part, forward, origins):
            order = places_of(node.graph)
            sources = sorted(origins[node])
            other = by_index.get(sources[0])
            dtype = node.meta["val"].dtype
            if len(sources) > 1 or other is None or order[part.marker] >= order[other.marker]:
                raise _refused(part, "the gradient of another hook or function")
            if not (dtype.is_floating_point or dtype.is_complex):
                raise _refused(part, f"{dtype} made from the gradient of another hook or function")
            _channel(part, other, node)


def _foreign(
    part: GradientPart, forward: AbstractSet[Node], origins: Mapping[Node, frozenset[int]]
) -> list[Node]:
    """Nodes that a part takes from other parts, in the order of the graph."""
    foreign: set[Node] = set()
    pending, done = list(part.gradients), set[Node]()
    while pending:
        node = pending.pop()
        if node in done or node in part.given or node in forward:
            continue
        done.add(node)
        if origins[node] and part.record.index not in origins[node]:
            foreign.add(node)
        else:
            pending += node.all_input_nodes
    return sorted(foreign, key=places_of(part.marker.graph).__getitem__)


def _channel(part: GradientPart, other: GradientPart, node: Node) -> None:
    value = node.meta["val"]
    results, inputs, index = part.marker.args
    assert isinstance(results, (list, tuple)) and isinstance(inputs, (list, tuple))
    graph, position = node.graph, len(results)
    with graph.inserting_before(part.marker):
        zeros = call_like(
            part.marker, torch.ops.aten.full.default, list(value.shape), 0.0, dtype=value.dtype
        )
    part.marker.args = ([*results, zeros], inputs, index)
    part.marker.meta["val"] = [*part.marker.meta["val"], value]
    with graph.inserting_after(part.marker):
        extra = call_like(part.marker, operator.getitem, part.marker, position)
    theirs, sources, number = other.marker.args
    assert isinstance(sources, (list, tuple))
    other.marker.args = (theirs, [*sources, extra], number)
    other.gradients.append(node)
    part.given[node] = position


def _computed(part: GradientPart, order: Mapping[Node, int]) -> list[Node]:
    """What a part computes, back to values that are there before its marker."""
    nodes: list[Node] = []
    done: set[Node] = set()
    limit = order[part.marker]
    work = [(node, False) for node in reversed(part.gradients)]
    while work:
        node, ready = work.pop()
        node = passed_on(node)
        if node in done or node in part.given:
            continue
        if ready:
            done.add(node)
            nodes.append(node)
            continue
        if node in order and (order[node] < limit or node.op != "call_function"):
            done.add(node)
            continue  # read
        if node in order and not _may_repeat(node):
            raise _refused(part, f"the result of {node.target}, which comes later,")
        work.append((node, True))
        work += [(n, False) for n in reversed(node.all_input_nodes)]
    return nodes


def _may_repeat(node: Node) -> bool:
    """Whether a node gives the same when it is computed a second time."""
    facts = op_facts().get(str(node.target))
    return facts is None or not facts.random


def _refused(part: GradientPart, what: str) -> GradientError:
    return GradientError(
        where=part.record.source,
        reason=f"{part.record.name} reads {what} where it is not available",
        hint="It may only read values that forward() has computed before it, and the gradients of "
        "its own outputs.",
        deviation="late-gradient-input",
    )


def passed_on(node: Node) -> Node:
    """The node that computes a value, behind any markers that pass it on."""
    while node.target is operator.getitem:
        parent: Any = node.args[0]
        if str(parent.target) != MARKER:
            break
        node = parent.args[0][node.args[1]]
    return node
