"""Channels last: which nodes run with the channel axis moved to the end.

Convolutions and batch norms run fastest with channels last, torch's layout has them second.
Both move the axis in and out themselves. Where only elementwise ops lie between two of them,
these run channels last as well: XLA then drops the moves in between, which meet in pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.lowering.failures import failures_of
from emulator.ops.registry import Channels, Form, OpSpec
from pef_schema.program import Graph, Value


def channels_last_nodes(
    graph: Graph, indices: Iterable[int], ops: Mapping[str, OpSpec]
) -> frozenset[int]:
    """Elementwise nodes to run channels last.

    Args:
        graph: Their graph.
        indices: Nodes that are lowered together, in order.
        ops: The registry.

    Returns:
        Those that read what a channels-last node gives, and whose tensors all have its rank.

    Raises:
        LoweringError: If an op cannot tell from the shapes of a node; it names the node.
    """
    last: set[int] = set()
    nodes: set[int] = set()
    for i in indices:
        node = graph.nodes[i]
        refs = tuple(node.refs())
        kind = ops[node.op].channels
        first = next(iter(node.outputs), -1)
        if first < 0:
            continue  # nobody reads it
        if callable(kind):
            with failures_of(node):
                kind = kind([_form(graph.values[v]) for v in refs], _form(graph.values[first]))
        if kind is Channels.LAST:
            last.add(first)
        elif kind is Channels.ANY:
            rank = len(graph.values[first].shape)
            if (
                rank > 2
                and not last.isdisjoint(refs)
                and all(len(graph.values[v].shape) in (0, rank) for v in refs)
            ):
                nodes.add(i)
                last.update(node.outputs)
    return frozenset(nodes)


def _form(value: Value) -> Form:
    return Form(value.shape, TO_NUMPY[value.dtype])


def to_channels_last(x: jax.Array) -> jax.Array:
    """``(N, C, ...)`` as ``(N, ..., C)``; numbers and matrices as they are."""
    return jnp.moveaxis(x, 1, -1) if x.ndim > 2 else x


def to_channels_second(x: jax.Array) -> jax.Array:
    """The inverse of :func:`to_channels_last`."""
    return jnp.moveaxis(x, -1, 1) if x.ndim > 2 else x
