"""A program as TensorBoard shows it: its graphs, costs of sections and memory along schedules."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from emulator.costs.stats import compiled_stats
from emulator.costs.steps import node_cost
from pef_schema import Program, Value
from pef_schema.printable import one_line
from pef_schema.program import DType
from pef_schema.section_facts import operations_text, plain_name, short_paths
from samba.compiler.forms.graph_json import forward_sections
from samba.errors import MissingPackage

__all__ = ["NAME_PART", "event_file", "need_tensorboard"]

NAME_PART = "tfevents"
"""What the name of a file has that TensorBoard reads."""
_VERSION = "brain.Event:2"
_TYPES: Mapping[DType, str] = MappingProxyType(
    {
        DType.FLOAT64: "DT_DOUBLE",
        DType.COMPLEX64: "DT_COMPLEX64",
        DType.COMPLEX128: "DT_COMPLEX128",
        DType.FLOAT32: "DT_FLOAT",
        DType.FLOAT16: "DT_HALF",
        DType.BFLOAT16: "DT_BFLOAT16",
    }
)
"""Types that TensorFlow calls otherwise; the others are called as they are."""
_LETTERS = re.compile(r"[^A-Za-z0-9_.\-]")
"""What a name of a node may not have."""
_PATHS = 200
_NO_MARKS = str.maketrans({"|": "/", "`": "'"})
"""What would end a cell or its code."""


def need_tensorboard() -> None:
    """Make sure that there is what writes event files.

    Raises:
        MissingPackage: If there is not.
    """
    try:
        importlib.import_module("tensorboard.compat.proto.event_pb2")
    except ModuleNotFoundError:
        raise MissingPackage(
            what="an event file for TensorBoard", package="tensorboard", extra="tensorboard"
        ) from None


def event_file(program: Program, graphs: Iterable[int]) -> bytes:
    """Write a program as the records of an event file, the same for the same program.

    * *Graphs*: a node for each operation, input, output, and region that is read, in scopes by
      module; its device is the section that runs it, so that it can be coloured by section.
    * *Scalars*, a step for each call of a schedule: operations, bytes and memory.
    * *Text*: the sections with modules and operations.

    Args:
        program: The program.
        graphs: Indices of the graphs; each is a scope where there are several.

    Raises:
        MissingPackage: If the package tensorboard is not installed.

    Source: ``tensorboard/compat/proto/event.proto`` and ``graph.proto`` of TensorBoard.
    """
    need_tensorboard()
    events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
    chosen = list(graphs)
    out = io.BytesIO()
    writer = records.RecordWriter(out)
    drawn = _Drawing(program, chosen).graph()
    found = [
        events.Event(file_version=_VERSION),
        events.Event(graph_def=drawn.SerializeToString(deterministic=True)),
        *(events.Event(step=step, summary=each) for step, each in _summaries(program, chosen)),
    ]
    for event in found:
        writer.write(event.SerializeToString(deterministic=True))
    return out.getvalue()


class _Drawing:
    """Graphs as one ``GraphDef``.

    Args:
        program: The program.
        graphs: Indices of the graphs.
    """

    def __init__(self, program: Program, graphs: list[int]) -> None:
        self._program, self._graphs = program, graphs
        self._sections = forward_sections(program)
        self._types: Any = importlib.import_module("tensorboard.compat.proto.types_pb2")
        package: Any = importlib.import_module("tensorboard.compat.proto.graph_pb2")
        self._made = package.GraphDef()
        self._names: dict[str, int] = {}

    def graph(self) -> Any:
        """All of it."""
        for index in self._graphs:
            self._add(index, [self._program.graphs[index].name] if len(self._graphs) > 1 else [])
        return self._made

    def _add(self, index: int, scope: list[str]) -> None:
        graph = self._program.graphs[index]
        makers: dict[int, str] = {}
        for value in graph.inputs:
            held = graph.values[value]
            makers[value] = self._node([*scope, held.name], "input", (), [held], {})
        for number, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.refs()):
                if value not in makers:
                    makers[value] = self._held(graph.values[value], scope)
            section = self._sections.get((index, number))
            facts = {
                "line": node.source,
                "operations": node_cost(graph, node).flops,
                "section": "" if section is None else self._program.sections[section].name,
            }
            name = self._node(
                [*scope, *(node.module.split("__") if node.module else ()), plain_name(node.op)],
                node.op,
                [makers[v] for v in dict.fromkeys(node.refs())],
                [graph.values[v] for v in node.outputs if v >= 0],
                facts,
            )
            for place, value in enumerate(node.outputs):
                if value >= 0:
                    makers[value] = f"{name}:{place}" if place else name
        for output in graph.outputs:
            if output.value not in makers:
                makers[output.value] = self._held(graph.values[output.value], scope)
            taken = [makers[output.value]]
            held = [graph.values[output.value]]
            self._node([*scope, "outputs", output.name], "output", taken, held, {})

    def _held(self, value: Value, scope: list[str]) -> str:
        """A node for what a region holds, in the scope of the module whose it is."""
        if value.region < 0:
            return self._node([*scope, value.name], "value", (), [value], {})
        region = self._program.regions[value.region]
        role = region.role.name.lower()
        return self._node([*scope, *region.name.split("__")], role, (), [value], {})

    def _node(
        self,
        path: list[str],
        op: str,
        inputs: Iterable[str],
        values: list[Value],
        facts: Mapping[str, str | int],
    ) -> str:
        parts = [_LETTERS.sub("_", part) or "_" for part in path]
        name = "/".join(parts)
        again = self._names.get(name, 0)
        self._names[name] = again + 1
        if again:
            return self._node([*path[:-1], f"{path[-1]}_{again}"], op, inputs, values, facts)
        node = self._made.node.add(name=name, op=one_line(op), input=list(inputs))
        node.device = str(facts.get("section", ""))
        for key, fact in facts.items():
            if isinstance(fact, int):
                node.attr[key].i = min(fact, 2**63 - 1)
            elif fact:
                node.attr[key].s = one_line(fact).encode()
        shapes = node.attr["_output_shapes"].list
        for value in values:
            shape = shapes.shape.add()
            for size in value.shape:
                shape.dim.add(size=size)
        if values:
            dtype = values[0].dtype
            node.attr["dtype"].type = getattr(
                self._types, _TYPES.get(dtype, f"DT_{dtype.name}"), self._types.DT_INVALID
            )
        return name


def _summaries(program: Program, graphs: list[int]) -> Iterator[tuple[int, Any]]:
    """Scalars and texts with their steps."""
    scalars: Any = importlib.import_module("tensorboard.plugins.scalar.summary_v2")
    texts: Any = importlib.import_module("tensorboard.plugins.text.summary_v2")
    stats = compiled_stats(program)
    sections = {section["id"]: section for section in stats["sections"]}
    names = [program.graphs[index].name for index in graphs]
    for graph in stats["graphs"]:
        if graph["name"] not in names:
            continue
        scope = f"{graph['name']}/" if len(names) > 1 else ""
        roles = list(dict.fromkeys(role for call in graph["calls"] for role in call["inside"]))
        for step, call in enumerate(graph["calls"]):
            cost = sections[call["section"]]["cost"]
            figures = {
                "section/operations": cost["product_flops"] + cost["other_flops"],
                "section/bytes": cost["bytes_read"] + cost["bytes_written"],
                "memory/most during a call": call["bytes"],
            }
            figures |= {f"memory/{role}": call["inside"].get(role, 0) for role in roles}
            for tag, figure in figures.items():
                yield step, scalars.scalar_pb(f"{scope}{tag}", float(figure))
        yield 0, texts.text_pb(f"{scope}sections", _table(graph, sections))


def _table(graph: Mapping[str, Any], sections: Mapping[int, Mapping[str, Any]]) -> str:
    """The calls of a schedule in the table of Markdown."""
    rows = ["| step | section | types | modules | operations |", "|---|---|---|---|---|"]
    for step, call in enumerate(graph["calls"]):
        section = sections[call["section"]]
        cells = (
            str(step),
            section["name"],
            "+".join(section["types"]),
            short_paths(tuple(section["modules"]), width=_PATHS),
            operations_text(tuple(section["operations"].items())),
        )
        # As code: two underscores begin bold text.
        plain = (one_line(cell).translate(_NO_MARKS) for cell in cells)
        rows.append("| " + " | ".join(f"`{cell}`" if cell else "" for cell in plain) + " |")
    return "\n".join(rows)
