"""Comparison of graphs: whether two compute the same, and the first place where they do not.

Both questions look at one canonical text per input, node, output and update. It numbers values in
the order of their appearance, so that two graphs that list their values differently still compare
equal, and leaves out what does not change the computation: source lines, module paths, regions
but for the state that an update changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from pef_schema.module_paths import plain_path
from pef_schema.program import Arg, DType, Gradient, Graph, Node, Program, Ref, Value
from pef_schema.rows import to_rows

_END = "(nothing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between a compiled and a traced graph.

    Args:
        place: ``input 0``, ``node 17``, ``output 1`` or ``update 0``.
        compiled: What the compiled graph has there, ``(nothing)`` if it has ended.
        traced: What the traced graph has there.
        compiled_source: ``file:line`` of the compiled node, empty if unknown.
        traced_source: ``file:line`` of the traced node.
        module: Module path of the node, empty if unknown.
    """

    place: str
    compiled: str
    traced: str
    compiled_source: str = ""
    traced_source: str = ""
    module: str = ""

    def __str__(self) -> str:
        module = f" in {plain_path(self.module)}" if self.module else ""
        return (
            f"{self.place}{module} differs:\n"
            f"  compiled: {_with_source(self.compiled, self.compiled_source)}\n"
            f"  traced:   {_with_source(self.traced, self.traced_source)}"
        )


def first_difference(compiled: Graph, traced: Graph) -> Difference | None:
    """Compare inputs, nodes, outputs and updates of two graphs.

    Compared are names, shapes and dtypes of inputs and of other sources (weights, constants); op,
    arguments, shapes and dtypes of each node; names and values of outputs; new values of state and
    the state that they are of.

    Args:
        compiled: The graph in the PEF.
        traced: The graph of the model now.

    Returns:
        The first difference, or None if the graphs compute the same.
    """
    for ours, theirs in zip_longest(_lines(compiled), _lines(traced)):
        if ours is not None and theirs is not None and ours[:2] == theirs[:2]:
            continue
        # Of two places, name the earlier kind: a missing node is met as an output too many.
        place = min([line[0] for line in (ours, theirs) if line is not None], key=_rank)
        at_ours, at_theirs = _at(ours, place), _at(theirs, place)
        return Difference(
            place=place,
            compiled=at_ours[1],
            traced=at_theirs[1],
            compiled_source=at_ours[3],
            traced_source=at_theirs[3],
            module=at_theirs[2] or at_ours[2],
        )
    return None


def renamed(compiled: Graph, traced: Graph) -> tuple[tuple[str, str], ...]:
    """Names that differ between two graphs that compute the same.

    Args:
        compiled: The graph in the PEF.
        traced: The graph of the model now.

    Returns:
        Compiled and traced name of inputs, other sources and outputs, where they differ; nothing
        if more than names differs, or nothing at all.
    """
    ours, theirs = _sources(compiled), _sources(traced)
    if len(ours) != len(theirs) or len(compiled.outputs) != len(traced.outputs):
        return ()
    names = {there: compiled.values[here].name for here, there in zip(ours, theirs, strict=True)}
    values = [replace(v, name=names.get(i, v.name)) for i, v in enumerate(traced.values)]
    both = list(zip(compiled.outputs, traced.outputs, strict=True))
    outputs = [replace(there, name=here.name) for here, there in both]
    same = replace(traced, values=tuple(values), outputs=tuple(outputs))
    if first_difference(compiled, same) is not None:
        return ()
    pairs = [(name, traced.values[there].name) for there, name in names.items()]
    pairs += [(here.name, there.name) for here, there in both]
    return tuple(dict.fromkeys([pair for pair in pairs if pair[0] != pair[1]]))


def _sources(graph: Graph) -> list[int]:
    """Values that no node makes, in the order of their appearance."""
    results = {index for node in graph.nodes for index in node.outputs}
    homes: dict[int, int] = {}
    for index, value in enumerate(graph.values):
        if index not in results and value.region >= 0:
            homes.setdefault(value.region, index)
    uses: dict[int, None] = dict.fromkeys(graph.inputs)
    for node in graph.nodes:
        uses.update(dict.fromkeys(node.refs()))
    uses.update(dict.fromkeys([output.value for output in graph.outputs]))
    for update in graph.updates:
        uses.update(dict.fromkeys([homes.get(update.region, update.value), update.value]))
    return [index for index in uses if index not in results]


def program_digest(program: Program) -> str:
    """Say which program it is: all that a PEF holds of it, names and source lines, too.

    Args:
        program: The program.

    Returns:
        SHA-256 in hexadecimal; programs with equal ones have equal PEFs.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> program_digest(nothing) == program_digest(replace(nothing, inference=False))
        False
    """
    segments = [(0, len(s), hashlib.sha256(s).digest()) for s in program.segments]
    return hashlib.sha256(repr(to_rows(program, segments)).encode()).hexdigest()


_Line = tuple[str, str, str, str]
"""Place, text, module path, source."""


def _lines(graph: Graph) -> Iterator[_Line]:
    """Yield the canonical text of every input, node, output and update, in this order."""
    numbering = _Numbering(graph.values, _uses(graph))
    for position, index in enumerate(graph.inputs):
        yield f"input {position}", numbering.use(index), "", ""
    for position, node in enumerate(graph.nodes):
        gradient = graph.gradient_of(node)
        # The index of a gradient says nothing: its own lines follow.
        text = numbering.text(node, node.args if gradient is None else node.args[1:])
        yield f"node {position}", text, node.module, node.source
        if gradient is not None:
            for place, line, source in _gradient_lines(gradient):
                yield f"node {position}, its gradient, {place}", line, node.module, source
    for position, output in enumerate(graph.outputs):
        yield f"output {position}", f"{output.name} = {numbering.use(output.value)}", "", ""
    results = {index for node in graph.nodes for index in node.outputs}
    homes: dict[int, str] = {}
    for index, value in enumerate(graph.values):
        if index not in results and value.region >= 0:
            homes.setdefault(value.region, value.name)
    for position, update in enumerate(graph.updates):
        state = homes.get(update.region, "?")
        yield f"update {position}", f"{state} <- {numbering.use(update.value)}", "", ""


def _gradient_lines(gradient: Gradient) -> Iterator[tuple[str, str, str]]:
    """Yield place, text and source of what a custom gradient computes."""
    numbering = _Numbering(gradient.values, _uses(gradient))
    for position, index in enumerate(gradient.inputs):
        yield f"input {position}", f"{numbering.number(index)}:{numbering.form(index)}", ""
    for position, node in enumerate(gradient.nodes):
        yield f"node {position}", numbering.text(node, node.args), node.source or gradient.source
    results = ", ".join([numbering.use(index) for index in gradient.outputs])
    yield "result", f"[{results}]", gradient.source


class _Numbering:
    """Numbers values in the order of their appearance.

    Args:
        values: The values.
        used: Those that something reads.
    """

    def __init__(self, values: Sequence[Value], used: set[int]) -> None:
        self._values, self._used = values, used
        self._numbers: dict[int, str] = {}

    def form(self, index: int) -> str:
        """A value's type."""
        value = self._values[index]
        return f"{value.dtype.name.lower()}{list(value.shape)}"

    def number(self, index: int) -> str:
        """A new number for a value."""
        number = self._numbers[index] = f"%{len(self._numbers)}"
        return number

    def use(self, index: int) -> str:
        """A value's number; at first sight a source gives its name and type as well."""
        number = self._numbers.get(index)
        if number is None:
            return f"{self.number(index)}={self._values[index].name}:{self.form(index)}"
        return number

    def text(self, node: Node, args: Sequence[Arg]) -> str:
        """A node with some of its arguments."""
        texts = [self._arg(item) for item in args]
        texts += [f"{name}={self._arg(item)}" for name, item in node.kwargs]
        results = [
            f"{self.number(index)}:{self.form(index)}" if index in self._used else "_"
            for index in node.outputs
        ]
        return f"{', '.join(results)} = {node.op}({', '.join(texts)})"

    def _arg(self, item: Arg) -> str:
        if isinstance(item, Ref):
            return self.use(item.value)
        if isinstance(item, tuple):
            return "[" + ", ".join([self._arg(inner) for inner in item]) + "]"
        return item.name.lower() if isinstance(item, DType) else repr(item)


def _uses(graph: Graph | Gradient) -> set[int]:
    """Return the values that a node, an output or an update reads."""
    if isinstance(graph, Gradient):
        used = set(graph.outputs)
    else:
        used = {output.value for output in graph.outputs}
        used |= {update.value for update in graph.updates}
    for node in graph.nodes:
        used.update(node.refs())
    return used


def _rank(place: str) -> int:
    """Order of the kinds of places."""
    return ("input", "node", "output", "update").index(place.split()[0])


def _at(line: _Line | None, place: str) -> _Line:
    """Return the line if it is at that place, else one that says that nothing is there."""
    return line if line is not None and line[0] == place else (place, _END, "", "")


def _with_source(text: str, source: str) -> str:
    """Add the source line, if known."""
    return f"{text}  # {source}" if source else text
