"""Nodes of an exported graph: their values, arguments and memory, and the modules they are of."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from samba.tracer.torch_internals import (
    arguments_of,
    fake_mode_of,
    is_mutable,
    is_operation,
    packet_of,
    storage_of,
)

KEPT_META = ("nn_module_stack", "stack_trace", "custom")
"""What a new node keeps of the one for which it stands: its module, its line, its annotations."""


# -- values and arguments ---------------------------------------------------------------


def aten_calls(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Nodes that call an operation of ATen, each with its name without the overload."""
    for node in graph.nodes:
        target = node.target
        if node.op == "call_function" and is_operation(target) and target.namespace == "aten":
            yield node, packet_of(target)


def value_of(arg: Any) -> Any:
    """What a node computes, without values; None for an argument that is not a node."""
    return arg.meta.get("val") if isinstance(arg, Node) else None


def values_of(node: Node) -> list[Any]:
    """What a node computes, each of several results for itself.

    Args:
        node: A node.
    """
    value = node.meta.get("val")
    return list(value) if isinstance(value, (tuple, list)) else [value]


def argument(node: Node, position: int, default: Any = None) -> Any:
    """An argument of an operation, whether it was given by position or by name.

    Args:
        node: A node that calls an operation.
        position: Of the argument in the signature.
        default: What it is where it was not given.
    """
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(arguments_of(node.target)[position].name, default)


def call_like(like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node where the graph inserts now, with the module and the line of another node.

    Args:
        like: The other node, of the same graph.
        target: The operation.
        args, kwargs: Its arguments.
    """
    node = like.graph.call_function(target, args, kwargs)
    node.meta = {k: v for k, v in like.meta.items() if k in KEPT_META}
    values, named = map_arg((args, kwargs), lambda source: source.meta["val"])
    with fake_mode_of((values, named, like.meta.get("val"))) or nullcontext():
        node.meta["val"] = target(*values, **named)
    return node


# -- memory -----------------------------------------------------------------------------


def written_by(node: Node) -> Iterator[Any]:
    """The arguments that a node changes in place."""
    if is_operation(node.target) and is_mutable(node.target):
        for place, each in enumerate(arguments_of(node.target)):
            if each.alias_info is not None and each.alias_info.is_write:
                yield argument(node, place)


def changes_in_place(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Operations in place, each with a tensor that it changes."""
    for node in graph.nodes:
        for value in written_by(node):
            if isinstance(value, Node):
                yield node, value


def shown_by(node: Node) -> Node | None:
    """The tensor of which a node is a view or a changed form; None if its memory is its own."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    if not is_operation(node.target) or not node.args:
        return None
    first, source = arguments_of(node.target)[:1], node.args[0]
    shares = bool(first) and first[0].alias_info is not None
    return source if shares and isinstance(source, Node) else None


def owner_of(node: Node, until: Any = None) -> Node:
    """The node whose memory a node shows.

    Args:
        node: The node.
        until: An operation at whose result the search ends.
    """
    while node.target is not until and (shown := shown_by(node)) is not None:
        node = shown
    return node


def places_of(graph: Graph) -> dict[Node, int]:
    """The number of each node in the order of the graph."""
    return {node: place for place, node in enumerate(graph.nodes)}


def readers_of_storages(graph: Graph) -> Counter[int]:
    """How many arguments of nodes show each memory."""
    return Counter(
        storage_of(value.meta["val"])
        for node in graph.nodes
        for value in node.all_input_nodes
        if isinstance(value.meta.get("val"), torch.Tensor)
    )


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """Nodes, and all that they are computed from."""
    result: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in result:
            result.add(node)
            pending += node.all_input_nodes
    return result


# -- modules ----------------------------------------------------------------------------


def last_nodes(nodes: Iterable[Node]) -> dict[str, Node]:
    """The last node of each call of a module; it carries the module's own name."""
    last: dict[str, Node] = {}
    for node in nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            calls = _module_calls(node)
            if calls:
                last[calls[-1][0]] = node
    return last


def label(node: Node, last: Mapping[str, Node]) -> tuple[str, str]:
    """Module path and op label: a torch.nn module's last op is called like the module's class.

    Args:
        node: A node that calls an operation.
        last: From :func:`last_nodes`.
    """
    packet = packet_of(node.target)
    calls = _module_calls(node)
    if not calls:
        return "", packet.strip("_")
    key, path, cls = calls[-1]
    if cls.startswith("torch.nn.modules.") and last.get(key) is node:
        return path, cls.rsplit(".", 1)[-1].lower()
    return path, packet.strip("_")


def dropout_module(node: Node) -> str:
    """The class of torch's dropout module that a node is of, in lower case; empty for none.

    Args:
        node: A node that calls an operation.
    """
    calls = _module_calls(node)
    cls = calls[-1][2] if calls else ""
    is_dropout = cls.startswith("torch.nn.modules.dropout.")
    return cls.rsplit(".", 1)[-1].lower() if is_dropout else ""


def _module_calls(node: Node) -> list[tuple[str, str, str]]:
    """``(call key, module path, class)`` from the model down to the innermost module."""
    stack = node.meta.get("nn_module_stack") or {}
    result = []
    for key, (path, cls) in stack.items():
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        result.append((key, str(path).split("@")[0], name))
    return result
