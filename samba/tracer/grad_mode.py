"""What ``forward`` computes under ``torch.no_grad()`` takes no part in the gradient.

The exporter keeps such a part of ``forward`` as a graph of its own, behind one node. It would be
lost when the graph is made functional, and the device would train what the user has frozen. Here
it goes back into the graph around it, and whatever leaves it is detached.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram

from samba.tracer.embedding_renorms import renorms_as_values
from samba.tracer.errors import InPlaceWithoutGradient
from samba.tracer.names import source_line
from samba.tracer.torch_internals import arguments_of, is_mutable, is_operation, replacing_nodes
from samba.tracer.traced import carries_gradient

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_DETACH = torch.ops.aten.detach.default
_DETACH_IN_PLACE = torch.ops.aten.detach_.default


def detach_ungraded(program: ExportedProgram, model: str) -> None:
    """Detach the results of all parts of a program that torch ran without gradients.

    Args:
        program: As ``torch.export.export`` gives it; changed in place.
        model: Name of the model, for errors.

    Raises:
        InPlaceWithoutGradient: If such a part changes a tensor in place that may have a gradient.
    """
    graph = program.graph
    regions = [node for node in graph.nodes if node.target is _REGION]
    if not regions:
        renorms_as_values(program, model, inference=False)
        if _detach_all(graph):
            _copy_changed(graph, model)
        return
    kept = set(program.graph_signature.inputs_to_parameters)
    ungraded: set[torch.fx.Node] = set()
    with replacing_nodes(program):
        for region in regions:
            inlined = list(_inline(program.graph_module, region))
            if not region.args[0]:
                ungraded.update(node for node in inlined if not _pass_itself(node))
            _erase(program.graph_module, region)
        renorms_as_values(program, model, inference=False)
        _refuse_changes(graph, ungraded, kept, model)
        for node in [n for n in graph.nodes if n in ungraded]:
            _detach(node, ungraded)
        if _detach_all(graph):
            _copy_changed(graph, model)
    program.graph_module.recompile()


def _detach_all(graph: torch.fx.Graph) -> bool:
    """Whether anything is detached; ``detach_()`` is among it, which would be lost."""
    found = [node for node in graph.nodes if node.target in (_DETACH, _DETACH_IN_PLACE)]
    for node in found:
        node.target = _DETACH
    return bool(found)


def _inline(module: torch.fx.GraphModule, region: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Copy a region's nodes before it and let its readers read them."""
    inner = _module_of(module, region).graph
    given = region.args[2:]
    own: dict[torch.fx.Node, Any] = dict(
        zip(inner.find_nodes(op="placeholder"), given, strict=True)
    )
    graph = region.graph
    for part in inner.nodes:
        if part.op in ("placeholder", "output"):
            continue
        with graph.inserting_before(region):
            new = own[part] = graph.node_copy(part, own.__getitem__)
        new.meta = dict(part.meta)
        yield new
    results = inner.output_node().args[0]
    for user in list(region.users):
        user.replace_all_uses_with(own[results[user.args[1]]])  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]  # a tuple, and each reader takes one of it
        graph.erase_node(user)


def _module_of(module: torch.fx.GraphModule, region: torch.fx.Node) -> torch.fx.GraphModule:
    holder: Any = region.args[1]
    return getattr(module, holder.target)


def _erase(module: torch.fx.GraphModule, region: torch.fx.Node) -> None:
    holder: Any = region.args[1]
    region.graph.erase_node(region)
    if not holder.users:
        holder.graph.erase_node(holder)
        delattr(module, holder.target)


def _pass_itself(node: torch.fx.Node) -> bool:
    """Let the readers of ``x.to(...)`` read ``x`` where torch returns ``x``, gradient and all."""
    source = node.args[0] if node.args else None
    if node.target not in _MAYBE_ITSELF or not isinstance(source, torch.fx.Node):
        return False
    (copy,) = [i for i, a in enumerate(arguments_of(node.target)) if a.name == "copy"] or [0]
    ours, theirs = node.meta["val"], source.meta["val"]
    same = (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
    if not same or (
        copy and (node.args[copy] if copy < len(node.args) else node.kwargs.get("copy"))
    ):
        return False
    node.replace_all_uses_with(source)
    return True


_MAYBE_ITSELF = frozenset(
    {
        *(torch.ops.aten.to.dtype, torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout),
        *(torch.ops.aten.to.other, torch.ops.aten.contiguous.default),
    }
)


def _detach(node: torch.fx.Node, ungraded: set[torch.fx.Node]) -> None:
    """Let what lies outside of the parts without gradients read a detached result."""
    value = node.meta.get("val")
    readers = [user for user in node.users if user not in ungraded]
    if not readers or not isinstance(value, torch.Tensor) or not carries_gradient(value):
        return
    with node.graph.inserting_after(node):
        result = node.graph.call_function(_DETACH, (node,))
    result.meta = {**node.meta, "val": value.detach()}
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user in readers)


def _refuse_changes(
    graph: torch.fx.Graph, ungraded: set[torch.fx.Node], parameters: set[str], model: str
) -> None:
    """Refuse changes in place of what has a gradient: torch goes on with that of the old values."""
    refused = []
    for node, changed in changes_in_place(graph):
        origin = changed
        while (shown := shown_by(origin)) is not None:
            origin = shown
        computed = origin.op == "call_function" and origin not in ungraded
        if node in ungraded and ((computed and _floats(origin)) or origin.name in parameters):
            refused.append(node)
    _refuse(refused, model)


def _copy_changed(graph: torch.fx.Graph, model: str) -> None:
    """Copy detached tensors that are changed in place, unless what they show is read again."""
    changes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, changed in changes_in_place(graph):
        origin = _memory(changed)
        if origin.target is _DETACH:
            changes.setdefault(origin, []).append(node)
    if not changes:
        return
    place = {node: i for i, node in enumerate(graph.nodes)}
    refused = []
    for detached, writers in changes.items():
        base = detached.args[0]
        if not isinstance(base, torch.fx.Node) or not _floats(base):
            continue
        owner, first = _memory(base), min(writers, key=place.__getitem__)
        if any(
            _memory(source) is owner
            for node in graph.nodes
            if place[node] > place[first] and node.target is not _DETACH
            for source in node.all_input_nodes
        ):
            refused.append(first)
            continue
        with graph.inserting_after(detached):
            copy = graph.call_function(torch.ops.aten.clone.default, (detached,))
        copy.meta = {**detached.meta, "val": detached.meta["val"].clone()}
        detached.replace_all_uses_with(copy, delete_user_cb=lambda user, own=copy: user is not own)
    _refuse(refused, model)


def _refuse(nodes: list[torch.fx.Node], model: str) -> None:
    lines: dict[str, None] = {}
    for node in nodes:
        line = source_line(node.meta.get("stack_trace")) or f"module {model}"
        lines[f"{line} ({node.target})"] = None
    if lines:
        raise InPlaceWithoutGradient(lines=tuple(lines))


def changes_in_place(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Operations in place, each with a tensor that it changes."""
    for node in graph.nodes:
        if not is_operation(node.target) or not is_mutable(node.target):
            continue
        for place, argument in enumerate(arguments_of(node.target)):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, torch.fx.Node):
                yield node, value


def shown_by(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor of which a node is a view or a changed form; None if its memory is its own."""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    if not is_operation(node.target) or not node.args:
        return None
    first, source = arguments_of(node.target)[:1], node.args[0]
    shares = bool(first) and first[0].alias_info is not None
    return source if shares and isinstance(source, torch.fx.Node) else None


def _memory(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a node shows, as far as the nearest one that is detached."""
    while node.target is not _DETACH and (shown := shown_by(node)) is not None:
        node = shown
    return node


def _floats(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and carries_gradient(value)
