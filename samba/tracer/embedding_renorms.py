"""Embedding tables with a ``max_norm``: what ``forward`` writes into a parameter.

Torch shortens the rows that an index names in place, behind the gradient, before it reads them.
Torch's exporter cannot make a graph functional that changes a parameter. Here the shorter table is
a value of its own, which all that comes later reads, and at the end it is the parameter's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import has_side_effect

from samba.tracer.errors import InPlaceWithoutGradient
from samba.tracer.names import source_line
from samba.tracer.torch_internals import arguments_of, is_mutable, is_operation

__all__ = ["RENORM", "renorm_operation", "renorms_as_values"]

RENORM = "samba.embedding_renorm.default"
"""The name of the operation that gives the shorter table."""

_IN_PLACE = torch.ops.aten.embedding_renorm_.default
_DETACH = torch.ops.aten.detach.default


@cache
def renorm_operation() -> Any:
    """``samba::embedding_renorm``, whose gradient passes through.

    Made when it is first needed, since importing must leave torch as it is.
    """

    def embedding_renorm(
        weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
    ) -> torch.Tensor:
        return torch.embedding_renorm_(weight.clone(), indices, max_norm, norm_type)

    made = torch.library.custom_op("samba::embedding_renorm", embedding_renorm, mutates_args=())
    made.register_fake(lambda weight, *args: torch.empty_like(weight))
    made.register_autograd(lambda ctx, grad: (grad, None, None, None))
    operation = torch.ops.samba.embedding_renorm.default
    has_side_effect(operation)  # the parameter is changed even if nothing reads it
    return operation


def renorms_as_values(program: ExportedProgram, model: str, *, inference: bool) -> None:
    """Let readers of an embedding table read the value that it has there.

    Args:
        program: As ``torch.export.export`` gives it, parts without gradients in their places;
            changed in place.
        model: Name of the model, for errors.
        inference: Whether nobody wants gradients.

    Raises:
        InPlaceWithoutGradient: What came before needs the table as it was for its gradient, as it
            does in torch, which raises then; or a view of it is read again.
    """
    graph = program.graph
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    changes = [node for node in graph.nodes if node.target is _IN_PLACE]
    origin: dict[torch.fx.Node, torch.fx.Node] = {}
    """Of a shorter table, the input of the graph that it is the value of."""
    present: dict[torch.fx.Node, torch.fx.Node] = {}
    for change in changes:
        source = _memory(change.args[0])
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


def _pass_on(table: torch.fx.Node, new: torch.fx.Node, model: str, *, inference: bool) -> None:
    """Let what comes after a change read the new value."""
    order = {node: number for number, node in enumerate(table.graph.nodes)}
    table.replace_all_uses_with(new, delete_user_cb=lambda user: order[user] > order[new])
    refused = []
    views = [table]
    for view in views:
        for user in view.users:
            if user is new or (user.target in _GATHERS and not _reads_rows_again(user)):
                continue
            if _shown(user) is view:
                views.append(user)
            elif not inference:
                refused.append(user)
    refused += [user for view in views[1:] for user in view.users if order[user] > order[new]]
    if refused:
        lines = {
            f"{source_line(user.meta.get('stack_trace')) or f'module {model}'} ({user.target}), "
            "which reads a table before max_norm changes it": None
            for user in refused
        }
        raise InPlaceWithoutGradient(lines=tuple(lines))


_GATHERS = frozenset(
    {
        torch.ops.aten.embedding.default,
        torch.ops.aten.embedding_bag.default,
        torch.ops.aten.embedding_bag.padding_idx,
    }
)
"""What reads a table and needs no number of it for the gradient."""


def _reads_rows_again(node: torch.fx.Node) -> bool:
    """Whether the gradient of a bag reads the table: of weights for each row, or of a maximum."""
    return len(node.args) > 4 and bool(node.args[4] == 2 or any(node.args[6:7]))


def _memory(node: Any) -> torch.fx.Node:
    """The node that a detached or changed one is."""
    while node.target is _DETACH or (is_operation(node.target) and is_mutable(node.target)):
        node = node.args[0]
    return node


def _shown(node: torch.fx.Node) -> Any:
    """The tensor of which a node is a view; None if its memory is its own."""
    if not is_operation(node.target) or not node.args:
        return None
    first = arguments_of(node.target)[:1]
    return node.args[0] if first and first[0].alias_info is not None else None
