"""Arguments of operations that only their gradients depend on: none of a graph without one."""

from __future__ import annotations

from dataclasses import replace

from pef_schema.program import Graph, Node

__all__ = ["without_gradient_arguments"]

_FORWARD = {"aten.embedding.default": 2}
"""How many of an operation's arguments its result depends on: what follows is of its gradient.

Which index of an embedding is of padding often depends on the tokenizer, which a script that only
compiles does not have.
"""


def without_gradient_arguments(graph: Graph) -> Graph:
    """A graph in which equal nodes are those that compute the same forward.

    Args:
        graph: A graph that is compiled for inference, or traced for it.
    """
    return replace(graph, nodes=tuple(map(_forward, graph.nodes)))


def _forward(node: Node) -> Node:
    most = _FORWARD.get(node.op)
    return node if most is None else replace(node, args=node.args[:most], kwargs=())
