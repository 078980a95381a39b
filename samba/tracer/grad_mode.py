"""What ``forward`` computes or changes behind the gradient, in a form that a graph can hold.

* What is computed under ``torch.no_grad()``: the exporter keeps such a part as a graph of its own,
  behind one node. It would be lost when the graph is made functional, and the device would train
  what the user has frozen. Here it goes back into the graph around it, and whatever leaves it is
  detached.
* What an embedding table with a ``max_norm`` writes into its parameter: torch shortens the rows
  that an index names in place, behind the gradient, before it reads them, and its exporter cannot
  make such a graph functional. Here the shorter table is a value of its own, which all that comes
  later reads, and at the end it is the parameter's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from samba.tracer.errors import InPlaceWithoutGradient
from samba.tracer.nodes import (
    argument,
    call_like,
    changes_in_place,
    owner_of,
    places_of,
    shown_by,
)
from samba.tracer.torch_internals import (
    arguments_of,
    is_mutable,
    is_operation,
    keep_operation,
    replacing_nodes,
)
from samba.tracer.traced import carries_gradient
from samba.tracer.user_code import node_line

RENORM = "samba.embedding_renorm.default"
"""The name of the operation that gives the shorter table."""

_RENORM_IN_PLACE = torch.ops.aten.embedding_renorm_.default
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
    kinds = _kinds_of_inputs(program)
    if not regions:
        renorms_as_values(program, model, inference=False)
        if _detach_all(graph):
            _copy_changed(graph, kinds, model)
        return
    parameters = set(program.graph_signature.inputs_to_parameters)
    ungraded: set[Node] = set()
    with replacing_nodes(program):
        for region in regions:
            inlined = list(_inline(program.graph_module, region))
            if not region.args[0]:
                ungraded.update(node for node in inlined if not _pass_itself(node))
            _erase(program.graph_module, region)
        renorms_as_values(program, model, inference=False)
        _refuse_changes(graph, ungraded, parameters, model)
        for node in [n for n in graph.nodes if n in ungraded]:
            _detach(node, ungraded)
        if _detach_all(graph):
            _copy_changed(graph, kinds, model)
    program.graph_module.recompile()


def _detach_all(graph: Graph) -> bool:
    """Whether anything is detached; ``detach_()`` is among it, which would be lost."""
    detaching = [node for node in graph.nodes if node.target in (_DETACH, _DETACH_IN_PLACE)]
    for node in detaching:
        node.target = _DETACH
    return bool(detaching)


def _inline(module: GraphModule, region: Node) -> Iterator[Node]:
    """Copy a region's nodes before it and let its readers read them."""
    inner = _module_of(module, region).graph
    arguments = region.args[2:]
    own: dict[Node, Any] = dict(zip(inner.find_nodes(op="placeholder"), arguments, strict=True))
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


def _module_of(module: GraphModule, region: Node) -> GraphModule:
    holder: Any = region.args[1]
    return getattr(module, holder.target)


def _erase(module: GraphModule, region: Node) -> None:
    holder: Any = region.args[1]
    region.graph.erase_node(region)
    if not holder.users:
        holder.graph.erase_node(holder)
        delattr(module, holder.target)


def _pass_itself(node: Node) -> bool:
    """Let the readers of ``x.to(...)`` read ``x`` where torch returns ``x``, gradient and all."""
    source = node.args[0] if node.args else None
    if node.target not in _MAYBE_ITSELF or not isinstance(source, Node):
        return False
    names = [each.name for each in arguments_of(node.target)]
    copies = "copy" in names and argument(node, names.index("copy"))
    ours, theirs = node.meta["val"], source.meta["val"]
    if copies or (ours.dtype, ours.stride()) != (theirs.dtype, theirs.stride()):
        return False
    node.replace_all_uses_with(source)
    return True


_MAYBE_ITSELF = frozenset(
    {
        *(torch.ops.aten.to.dtype, torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout),
        *(torch.ops.aten.to.other, torch.ops.aten.contiguous.default),
    }
)


def _detach(node: Node, ungraded: set[Node]) -> None:
    """Let what lies outside of the parts without gradients read a detached result."""
    value = node.meta.get("val")
    readers = [user for user in node.users if user not in ungraded]
    if not readers or not isinstance(value, torch.Tensor) or not carries_gradient(value):
        return
    with node.graph.inserting_after(node):
        result = node.graph.call_function(_DETACH, (node,))
    result.meta = {**node.meta, "val": value.detach()}
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user in readers)


def _refuse_changes(graph: Graph, ungraded: set[Node], parameters: set[str], model: str) -> None:
    """Refuse changes in place of what has a gradient: torch goes on with that of the old values."""
    refused = []
    for node, changed in changes_in_place(graph):
        origin = owner_of(changed)
        computed = origin.op == "call_function" and origin not in ungraded
        if node in ungraded and ((computed and _floats(origin)) or origin.name in parameters):
            refused.append(node)
    _refuse(refused, model)


def _kinds_of_inputs(program: ExportedProgram) -> dict[str, InputKind]:
    return {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}


def _copy_changed(graph: Graph, kinds: Mapping[str, InputKind], model: str) -> None:
    """Copy detached tensors that are changed in place, unless what they show is read again.

    Those of a buffer are the buffer, which has no gradient; a parameter is left to the script.
    """
    changes: dict[Node, list[Node]] = {}
    itself: set[Node] = set()
    for node, changed in changes_in_place(graph):
        origin = owner_of(changed, _DETACH)
        if origin.target is _DETACH:
            changes.setdefault(origin, []).append(node)
        else:
            itself.add(origin)
    if not changes:
        return
    place = places_of(graph)
    refused: list[Node] = []
    copied: list[Node] = []
    for detached, writers in changes.items():
        base = detached.args[0]
        if not isinstance(base, Node) or not _floats(base):
            continue
        owner, first = owner_of(base, _DETACH), min(writers, key=place.__getitem__)
        held = owner_of(base)
        kind = kinds.get(held.name) if held.op == "placeholder" else None
        if kind not in (None, InputKind.USER_INPUT):
            is_plain = kind is not InputKind.PARAMETER and held not in itself
            if is_plain and _is_only_written(detached, writers):
                _write_itself(detached, base, writers)
            else:
                refused.append(first)
        elif any(
            owner_of(source, _DETACH) is owner
            for node in graph.nodes
            if place[node] > place[first] and node.target is not _DETACH
            for source in node.all_input_nodes
        ):
            refused.append(first)
        else:
            copied.append(detached)
    _refuse(refused, model)
    for detached in copied:
        with graph.inserting_after(detached):
            copy = graph.call_function(torch.ops.aten.clone.default, (detached,))
        copy.meta = {**detached.meta, "val": detached.meta["val"].clone()}
        detached.replace_all_uses_with(copy, delete_user_cb=lambda user, own=copy: user is not own)


def _is_only_written(shown: Node, writers: Sequence[Node]) -> bool:
    """Whether a detached tensor, its views and changed forms are only changed, and not read."""
    return all(
        _is_only_written(user, writers)
        if shown_by(user) is shown
        else user in writers or not (user.users or user.op == "output")
        for user in shown.users
    )


def _write_itself(detached: Node, base: Node, writers: Sequence[Node]) -> None:
    """Change a tensor itself in the place of a detached one, with values that have no gradient."""
    for writer in writers:
        for source in writer.all_input_nodes:
            if _floats(source) and owner_of(source, _DETACH) is not detached:
                with writer.graph.inserting_before(writer):
                    values = call_like(writer, _DETACH, source)
                writer.replace_input_with(source, values)
    detached.replace_all_uses_with(base)
    detached.graph.erase_node(detached)


def _refuse(nodes: Iterable[Node], model: str, why: str = "") -> None:
    lines = [f"{node_line(node, f'module {model}')} ({node.target}){why}" for node in nodes]
    if lines:
        raise InPlaceWithoutGradient(lines=tuple(dict.fromkeys(lines)))


def _floats(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and carries_gradient(value)


# -- embedding tables with a max_norm ---------------------------------------------------


@cache
def renorm_operation() -> Any:
    """``samba::embedding_renorm``, whose gradient passes through.

    Made when it is first needed, since importing must leave torch as it is.
    """

    def embedding_renorm(
        weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
    ) -> torch.Tensor:
        return torch.embedding_renorm_(weight.clone(), indices, max_norm, norm_type)

    custom = torch.library.custom_op("samba::embedding_renorm", embedding_renorm, mutates_args=())
    custom.register_fake(lambda weight, *args: torch.empty_like(weight))
    custom.register_autograd(lambda ctx, grad: (grad, None, None, None))
    operation = torch.ops.samba.embedding_renorm.default
    keep_operation(operation)  # the parameter is changed even if nothing reads it
    return operation


def renorms_as_values(program: ExportedProgram, model: str, *, inference: bool) -> None:
    """Let readers of an embedding table read the value that it has there.

    Args:
        program: As ``torch.export.export`` gives it, parts without gradients in their places;
            changed in place.
        model: Name of the model, for errors.
        inference: Whether no gradients are wanted.

    Raises:
        InPlaceWithoutGradient: What came before needs the table as it was for its gradient, as it
            does in torch, which raises then; or a view of it is read again.
    """
    graph = program.graph
    kinds = _kinds_of_inputs(program)
    changes = [node for node in graph.nodes if node.target is _RENORM_IN_PLACE]
    origin: dict[Node, Node] = {}
    """Of a shorter table, the input of the graph that it is the value of."""
    present: dict[Node, Node] = {}
    for change in changes:
        source = _table_of(change.args[0])
        source = origin.get(source, source)
        kind = kinds.get(source.name) if source.op == "placeholder" else None
        if kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            continue  # a computed table: refused with all else that is changed behind a gradient
        table = present.get(source, source)
        with graph.inserting_before(change):
            new = graph.call_function(renorm_operation(), (table, *change.args[1:]))
            new.meta = {**change.meta, "val": table.meta["val"].clone()}
            if kind is InputKind.BUFFER:
                result = graph.call_function(torch.ops.aten.copy_.default, (table, new))
                result.meta = dict(change.meta)
            else:
                result = new
        change.replace_all_uses_with(result)
        graph.erase_node(change)
        if kind is InputKind.PARAMETER:
            _pass_on(table, new, model, inference=inference)
            origin[new], present[source] = source, new


def _pass_on(table: Node, new: Node, model: str, *, inference: bool) -> None:
    """Let what comes after a change read the new value."""
    order = places_of(table.graph)
    table.replace_all_uses_with(new, delete_user_cb=lambda user: order[user] > order[new])
    refused = []
    views = [table]
    for view in views:
        for user in view.users:
            if user is new or (user.target in _GATHERS and not _reads_rows_again(user)):
                continue
            if shown_by(user) is view:
                views.append(user)
            elif not inference:
                refused.append(user)
    refused += [user for view in views[1:] for user in view.users if order[user] > order[new]]
    _refuse(refused, model, ", which reads a table before max_norm changes it")


_GATHERS = frozenset(
    {
        torch.ops.aten.embedding.default,
        torch.ops.aten.embedding_bag.default,
        torch.ops.aten.embedding_bag.padding_idx,
    }
)
"""What reads a table and needs no number of it for the gradient."""


def _reads_rows_again(node: Node) -> bool:
    """Whether the gradient of a bag reads the table: of weights for each row, or of a maximum."""
    return len(node.args) > 4 and bool(node.args[4] == 2 or any(node.args[6:7]))


def _table_of(node: Any) -> Node:
    """The node that a detached or changed one is."""
    while node.target is _DETACH or (is_operation(node.target) and is_mutable(node.target)):
        node = node.args[0]
    return node
