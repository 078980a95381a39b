"""``torch.no_grad()`` in ``forward``: no gradient flows through what is computed inside.

The exporter keeps such a block as a graph of its own, and puts it in the place of its call as it is
when a graph becomes functional. So what leaves the block is detached before, and so is what
changes a tensor in place there.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from samba.tracer.errors import GradientError
from samba.tracer.names import node_line
from samba.tracer.torch_internals import arguments_of, is_mutable, is_operation, returns_alias

_MAY_GIVE_ITSELF = ("aten.to.", "aten.contiguous.", "aten.dropout.", "aten.positive.")
"""How the names of operations begin that copy only where there is something to change."""

_STATE = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT)


def stop_gradients(program: ExportedProgram) -> None:
    """Detach what is computed while gradients are off.

    Args:
        program: As ``torch.export.export`` gives it; its graphs are changed in place.

    Raises:
        GradientError: A tensor with a history is changed in place while gradients are off.
    """
    state = {
        spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in _STATE
    }
    sources = program.graph.find_nodes(op="placeholder")
    without = {node for node in sources if node.name in state}
    _visit(program.graph_module, without, enabled=True)


def _visit(module: torch.fx.GraphModule, without: set[torch.fx.Node], *, enabled: bool) -> None:
    """Walk the blocks of a graph.

    Args:
        module: The graph.
        without: Those of its sources that have no history.
        enabled: Whether gradients are on in it.
    """
    blocks: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        for at, attribute in enumerate(node.args):
            if not isinstance(attribute, torch.fx.Node) or attribute.op != "get_attr":
                continue
            block = getattr(module, str(attribute.target), None)
            if isinstance(block, torch.fx.GraphModule):
                blocks.add(node)
                sets = node.target is torch.ops.higher_order.wrap_with_set_grad_enabled
                inner = block.graph.find_nodes(op="placeholder")
                bare = {
                    own
                    for own, given in zip(inner, node.args[at + 1 :], strict=False)
                    if isinstance(given, torch.fx.Node) and _root(given) in without
                }
                _visit(block, bare, enabled=bool(node.args[0]) if sets else enabled)
    if not enabled:
        _detach(module, blocks, without)


def _detach(
    module: torch.fx.GraphModule, blocks: set[torch.fx.Node], without: set[torch.fx.Node]
) -> None:
    """Detach what a block computes where it leaves: as a result, or to a block inside."""
    for node in list(module.graph.nodes):
        leaving = {user for user in node.users if user.op == "output" or user in blocks}
        if node.op == "call_function" and is_operation(node.target) and is_mutable(node.target):
            _detach_operands(module, node, without)
        elif leaving and _is_computed(node, blocks):
            with module.graph.inserting_after(node):
                apart = _detached(module.graph, node)
            node.replace_all_uses_with(apart, leaving.__contains__)
    module.recompile()


def _detach_operands(
    module: torch.fx.GraphModule, node: torch.fx.Node, without: set[torch.fx.Node]
) -> None:
    """Detach all that changes a tensor in place; what is changed keeps the history that it had."""
    args = list(node.args)
    for i, (arg, told) in enumerate(zip(args, arguments_of(node.target), strict=False)):
        if not isinstance(arg, torch.fx.Node):
            continue
        if told.alias_info is not None and told.alias_info.is_write:
            root = _root(arg)
            if root.op == "placeholder" and root not in without and _is_floating(root):
                raise GradientError(
                    where=node_line(node) or "forward()",
                    reason=f"{node.target} changes a tensor under torch.no_grad() that gradients "
                    "flow through",
                    hint="Compute a new tensor: y = x + (new - x).detach() has the new values and "
                    "the gradient of x.",
                    deviation="no-grad-in-place",
                )
        elif _is_floating(arg):
            with module.graph.inserting_before(node):
                args[i] = _detached(module.graph, arg)
    node.args = tuple(args)


def _detached(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    apart = graph.call_function(torch.ops.aten.detach.default, (node,))
    apart.meta = dict(node.meta)
    return apart


def _root(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor that a view is of, or that was changed in place."""
    while node.op == "call_function" and is_operation(node.target) and returns_alias(node.target):
        first = node.args[0]
        if not isinstance(first, torch.fx.Node):
            break
        node = first
    return node


def _gives_itself(node: torch.fx.Node) -> bool:
    """Whether an operation changes nothing and gives the very tensor that it takes."""
    given = node.args[0] if node.args else None
    if not str(node.target).startswith(_MAY_GIVE_ITSELF) or not isinstance(given, torch.fx.Node):
        return False
    before, after = given.meta.get("val"), node.meta["val"]
    if not isinstance(before, torch.Tensor) or before.dtype != after.dtype:
        return False
    if str(node.target).startswith("aten.dropout"):
        return not node.args[2]
    if str(node.target).startswith("aten.contiguous"):
        return before.is_contiguous()
    copies = [
        value
        for told, value in zip(arguments_of(node.target), node.args, strict=False)
        if told.name == "copy"
    ]
    return not any(copies) and not node.kwargs.get("copy")


def _is_floating(node: torch.fx.Node) -> bool:
    value: Any = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_computed(node: torch.fx.Node, blocks: set[torch.fx.Node]) -> bool:
    if node.op != "call_function" or not _is_floating(node) or _gives_itself(node):
        return False
    # What a block inside gives is detached there, if gradients are off there.
    return not (node.target is operator.getitem and node.args[0] in blocks)
