"""Graphs of a program as JSON, whole: nodes with all their arguments, values, gradients.

``inspect --json`` says what a PEF holds and costs; this is what a tool needs that computes a graph
or changes it. docs/program.md describes the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pef_schema import Graph, Node, Program, Value
from pef_schema.program import Arg, DType, Gradient, Ref

__all__ = ["FORMAT", "VERSION", "graphs_as_dict"]

FORMAT, VERSION = "samba.graph", 1


def graphs_as_dict(program: Program, graphs: Iterable[int]) -> dict[str, Any]:
    """Graphs of a program as plain data.

    Args:
        program: The program.
        graphs: Indices of the graphs.

    Returns:
        JSON as Python has it, without NaN and infinities: such numbers are ``{"float": "inf"}``.
    """
    sections = forward_sections(program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "inference": program.inference,
        "graphs": [_graph(program, index, sections) for index in graphs],
    }


def forward_sections(program: Program) -> dict[tuple[int, int], int]:
    """The section whose forward step runs a node, by graph and node.

    Args:
        program: The program.
    """
    found: dict[tuple[int, int], int] = {}
    for index, section in enumerate(program.sections):
        for step in section.steps:
            if step.kind.name == "FWD":
                for node in step.nodes:
                    found.setdefault((step.graph, node), index)
    return found


def _graph(program: Program, index: int, sections: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    graph: Graph = program.graphs[index]
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": [
            {"name": o.name, "value": o.value, "gradient": o.grad.name.lower()}
            for o in graph.outputs
        ],
        "updates": [
            {"value": u.value, "region": program.regions[u.region].name} for u in graph.updates
        ],
        "values": [_value(program, i, value) for i, value in enumerate(graph.values)],
        "nodes": [
            {**_node(i, node), "section": _name_of(program, sections.get((index, i)))}
            for i, node in enumerate(graph.nodes)
        ],
        "gradients": [_gradient(program, gradient) for gradient in graph.gradients],
    }


def _name_of(program: Program, section: int | None) -> str | None:
    return None if section is None else program.sections[section].name


def _gradient(program: Program, gradient: Gradient) -> dict[str, Any]:
    return {
        "name": gradient.name,
        "line": gradient.source,
        "inputs": list(gradient.inputs),
        "outputs": list(gradient.outputs),
        "values": [_value(program, i, value) for i, value in enumerate(gradient.values)],
        "nodes": [_node(i, node) for i, node in enumerate(gradient.nodes)],
    }


def _value(program: Program, index: int, value: Value) -> dict[str, Any]:
    region = program.regions[value.region] if value.region >= 0 else None
    return {
        "id": index,
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype.name.lower(),
        "region": None if region is None else region.name,
        "role": None if region is None else region.role.name.lower(),
    }


def _node(index: int, node: Node) -> dict[str, Any]:
    return {
        "id": index,
        "op": node.op,
        "args": [_argument(arg) for arg in node.args],
        "kwargs": {name: _argument(arg) for name, arg in node.kwargs},
        "outputs": [value if value >= 0 else None for value in node.outputs],
        "module": node.module,
        "line": node.source,
    }


def _argument(arg: Arg) -> Any:
    """An argument as JSON: what JSON has no form for is an object with one key."""
    if isinstance(arg, Ref):
        return {"value": arg.value}
    if isinstance(arg, DType):
        return {"dtype": arg.name.lower()}
    if isinstance(arg, complex):
        return {"complex": str(arg)}
    if isinstance(arg, float) and not math.isfinite(arg):
        return {"float": str(arg)}
    if isinstance(arg, Sequence) and not isinstance(arg, str):
        return [_argument(item) for item in arg]
    return arg
