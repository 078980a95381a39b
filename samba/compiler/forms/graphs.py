"""Graphs of a program in the forms of other tools: JSON with all arguments, and DOT drawings.

``inspect --json`` says what a PEF holds and costs; the JSON of this file is what a tool needs that
computes a graph or changes it. docs/program.md describes the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pef_schema import Graph, Node, Program, Value
from pef_schema.printable import one_line
from pef_schema.program import Arg, DType, Gradient, Ref
from pef_schema.program_facts import plain_name

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
    sections: dict[tuple[int, int], int] = {}
    for index, section in enumerate(program.sections):
        for step in section.steps:
            if step.kind.name == "FWD":
                for node in step.nodes:
                    sections.setdefault((step.graph, node), index)
    return sections


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


_STYLE = """\
  graph [rankdir=TB, fontname="Helvetica", compound=true, newrank=true];
  node [shape=box, style="rounded,filled", fillcolor="white", fontname="Helvetica", fontsize=10];
  edge [fontname="Helvetica", fontsize=8, color="gray40"];"""
_MODULE = 'style="rounded"; color="gray60"; fontcolor="gray30";'
_SECTION = 'style="rounded,filled"; color="steelblue"; fillcolor="aliceblue";'


_DEPTH = 32
"""Modules within each other that are clusters of their own; a file may name any number."""


@dataclass(slots=True, kw_only=True)
class _Module:
    """A module, with the nodes that are its own.

    Args:
        path: Its name with those of the modules around it.
        nodes: Nodes by the section that runs them, -1 for none.
        inner: The modules within it, by name.
    """

    path: str
    nodes: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    inner: dict[str, _Module] = field(default_factory=dict[str, "_Module"])


def as_dot(program: Program, graphs: Iterable[int]) -> str:
    """Write graphs as one DOT digraph; ``dot -Tsvg`` draws it.

    Modules are clusters within each other. Each has a cluster for every section that runs nodes of
    its own, so a section that runs several modules has a cluster in each. Weights are not nodes: a
    node that reads some names them in its tooltip.

    Args:
        program: The program.
        graphs: Indices of the graphs; each is a cluster where there are several.

    Returns:
        The text, with a line end at its end.
    """
    chosen, sections = list(graphs), forward_sections(program)
    lines = [f"digraph {_quoted(program.name)} {{", _STYLE]
    for index in chosen:
        body = _Drawing(program, index, sections).lines()
        if len(chosen) > 1:
            label = _quoted(f"graph {program.graphs[index].name}")
            lines += [f"  subgraph cluster_g{index} {{", f"    label={label};"]
            lines += [f"  {line}" for line in body]
            lines.append("  }")
        else:
            lines += body
    lines.append("}")
    return "\n".join(lines) + "\n"


class _Drawing:
    """One graph as lines of DOT.

    Args:
        program: The program.
        index: Of the graph.
        sections: The section that runs a node, by graph and node.
    """

    def __init__(
        self, program: Program, index: int, sections: Mapping[tuple[int, int], int]
    ) -> None:
        self._program, self._index, self._graph = program, index, program.graphs[index]
        graph = self._graph
        self._makers = {v: f"i{index}_{v}" for v in graph.inputs}
        for number, node in enumerate(graph.nodes):
            self._makers |= {v: f"n{index}_{number}" for v in node.outputs if v >= 0}
        self._root = _Module(path="")
        for number, node in enumerate(graph.nodes):
            module = self._root
            parts = node.module.split("__", _DEPTH - 1) if node.module else []
            for depth, part in enumerate(parts):
                path = "__".join(parts[: depth + 1])
                module = module.inner.setdefault(part, _Module(path=path))
            module.nodes.setdefault(sections.get((index, number), -1), []).append(number)

    def lines(self) -> list[str]:
        """All of it."""
        graph, index = self._graph, self._index
        lines = [
            f"  i{index}_{v} [shape=ellipse, label={_quoted(_tensor(graph.values[v]))}];"
            for v in graph.inputs
        ]
        for name, module in self._root.inner.items():
            lines += self._module(name, module, "  ")
        lines += self._own_nodes(self._root, "  ")
        for number, output in enumerate(graph.outputs):
            label = _quoted(f"{output.name}\n{_form(graph.values[output.value])}")
            lines.append(f"  o{index}_{number} [shape=ellipse, label={label}];")
        return [*lines, *self._edges()]

    def _module(self, name: str, module: _Module, indent: str) -> Iterator[str]:
        cluster = _quoted(f"cluster_g{self._index}_m_{module.path}")
        yield f"{indent}subgraph {cluster} {{"
        yield f"{indent}  label={_quoted(name)}; tooltip={_quoted(module.path)}; {_MODULE}"
        for inner_name, inner in module.inner.items():
            yield from self._module(inner_name, inner, indent + "  ")
        yield from self._own_nodes(module, indent + "  ")
        yield f"{indent}}}"

    def _own_nodes(self, module: _Module, indent: str) -> Iterator[str]:
        for section, numbers in module.nodes.items():
            if section < 0:
                yield from (indent + self._node(number) for number in numbers)
                continue
            cluster = _quoted(f"cluster_g{self._index}_s{section}_{module.path}")
            yield f"{indent}subgraph {cluster} {{"
            yield f"{indent}  label={_quoted(self._program.sections[section].name)}; {_SECTION}"
            yield from (f"{indent}  {self._node(number)}" for number in numbers)
            yield f"{indent}}}"

    def _node(self, number: int) -> str:
        graph, node = self._graph, self._graph.nodes[number]
        forms = [_form(graph.values[v]) for v in node.outputs if v >= 0]
        names = [
            self._program.regions[graph.values[v].region].name
            for v in dict.fromkeys(node.refs())
            if v not in self._makers and graph.values[v].region >= 0
        ]
        label = _quoted("\n".join([plain_name(node.op), *forms]))
        tooltip = _quoted("\n".join([node.op, *names, node.source]))
        return f"n{self._index}_{number} [label={label}, tooltip={tooltip}];"

    def _edges(self) -> Iterator[str]:
        graph, makers = self._graph, self._makers
        for number, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.refs()):
                if value in makers:
                    tip = _quoted(_tensor(graph.values[value]))
                    yield f"  {makers[value]} -> n{self._index}_{number} [edgetooltip={tip}];"
        for number, output in enumerate(graph.outputs):
            if output.value in makers:
                yield f"  {makers[output.value]} -> o{self._index}_{number};"


def _tensor(value: Value) -> str:
    return f"{value.name}\n{_form(value)}"


def _form(value: Value) -> str:
    return f"{value.dtype.name.lower()}[{', '.join(map(str, value.shape))}]"


def _quoted(text: str) -> str:
    """A quoted ID of DOT: lines stay lines, anything else that steers a terminal is escaped."""
    lines = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'
