"""Graphs without the parts that compute the same in every run, to tell whether two are equal."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from emulator.op_facts.names import NEXT_SEED
from emulator.op_facts.table import op_facts
from pef_schema.program import Arg, Graph, Node, Ref, Role, Value
from samba.tracer.reference import run_node
from samba.tracer.traced import Traced


def constant_values(traced: Traced) -> dict[int, torch.Tensor]:
    """Values of a graph that depend neither on inputs and weights nor on random numbers.

    A buffer that the graph does not update counts as a constant.

    Args:
        traced: The graph.

    Returns:
        Their contents by value index.
    """
    updated = {source for _, source in traced.updates}
    known: dict[int, Any] = {
        s.value: as_plain(s.tensor)
        for s in traced.sources
        if (s.role is Role.CONSTANT or (s.role is Role.BUFFER and s.value not in updated))
        and s.tensor is not None
        and getattr(s.tensor, "_has_data", True)
    }
    facts = op_facts()
    with torch.no_grad():
        for node in traced.nodes:
            fact = facts.get(node.op)
            if node.op == NEXT_SEED or fact is None or fact.random:
                continue
            if all(ref in known for ref in node.refs()):
                try:
                    results = run_node(node, known)
                except (RuntimeError, TypeError, AttributeError):
                    continue  # it stays a node, and is compared as one
                for index, result in zip(node.outputs, results, strict=False):
                    if index >= 0:
                        known[index] = result
    return known


def without_constant_parts(traced: Traced) -> Graph:
    """The graph of a trace in which each constant value is a source that is named by its contents.

    Args:
        traced: The trace.

    Returns:
        A graph to compare; it cannot be run.
    """
    known = constant_values(traced)
    graph = traced.graph()
    first: dict[str, int] = {}
    same: dict[int, int] = {}
    values = list(graph.values)
    for index, tensor in known.items():
        name = f"constant {_digest(tensor)}"
        same[index] = first.setdefault(name, index)
        values[index] = replace(values[index], name=name)

    def of(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(same.get(arg.value, arg.value))
        if isinstance(arg, tuple):
            return tuple([of(item) for item in arg])
        return arg

    def moved(node: Node) -> Node:
        kwargs = tuple([(name, of(arg)) for name, arg in node.kwargs])
        return replace(node, args=tuple([of(arg) for arg in node.args]), kwargs=kwargs)

    renamed: tuple[Value, ...] = tuple(values)
    return replace(
        graph,
        values=renamed,
        nodes=tuple([moved(n) for n in graph.nodes if not all(v in known for v in _results(n))]),
        outputs=tuple(
            [replace(o, name="", value=same.get(o.value, o.value)) for o in graph.outputs]
        ),
        updates=tuple([replace(u, value=same.get(u.value, u.value)) for u in graph.updates]),
    )


def _results(node: Node) -> list[int]:
    return [index for index in node.outputs if index >= 0] or [-1]


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of any class."""
    return tensor.detach().as_subclass(torch.Tensor)


def _digest(tensor: torch.Tensor) -> str:
    plain = as_plain(tensor).contiguous()
    contents = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    form = f"{list(plain.shape)} {plain.dtype}"
    return hashlib.sha256(form.encode() + contents).hexdigest()
