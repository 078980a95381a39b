"""Between the ``Program`` and the rows of its tables (pef.fbs), both ways, one pair per part."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from pef_schema.limits import LIMITS, Limits
from pef_schema.program import (
    Arg,
    Argin,
    ArginKind,
    Call,
    DType,
    Gradient,
    Graph,
    Node,
    Optimizer,
    OptimizerKind,
    OptimizerParam,
    Output,
    OutputGrad,
    Program,
    Ref,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    Symbol,
    Update,
    Value,
)
from pef_schema.tables import Row
from pef_schema.verify_rules import Report

_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")
_E = TypeVar("_E", bound=enum.IntEnum)
_T = TypeVar("_T")


def _by_number(kind: type[_E]) -> dict[int, _E]:
    return {int(member): member for member in kind}


_DTYPES = _by_number(DType)


class ArgTag(enum.IntEnum):
    """Kind of a token of a node's arguments; pef.fbs says what goes with each."""

    NONE = 1
    REF = 2
    DTYPE = 3
    BOOL = 4
    INT = 5
    FLOAT = 6
    TEXT = 7
    LIST = 8
    COMPLEX = 10
    IMAGINARY = 11


# Plain ints: comparing with an enum member costs three times as much.
_NONE, _REF, _DTYPE, _BOOL, _INT, _FLOAT, _TEXT, _LIST, _COMPLEX, _IMAGINARY = map(int, ArgTag)


def put_arg(arg: Arg, tags: bytearray, bits: list[int], texts: list[str]) -> None:
    """Append the tokens of one argument, in prefix order.

    Args:
        arg: The argument; ``verify`` has bounded its nesting.
        tags: Receives an :class:`ArgTag` per token.
        bits: Receives a number per token.
        texts: Receives the strings.
    """
    kind = type(arg)
    if isinstance(arg, Ref):
        token = _REF, arg.value
    elif arg is None:
        token = _NONE, 0
    elif isinstance(arg, tuple):
        token = _LIST, len(arg)
    elif isinstance(arg, str):
        token = _TEXT, len(texts)
        texts.append(arg)
    elif isinstance(arg, float):
        token = _FLOAT, _bits(arg)
    elif isinstance(arg, complex):
        token = _COMPLEX, _bits(arg.real)
    else:
        token = (_DTYPE if kind is DType else _BOOL if kind is bool else _INT), int(arg)
    tags.append(token[0])
    bits.append(token[1])
    if isinstance(arg, complex):
        tags.append(_IMAGINARY)
        bits.append(_bits(arg.imag))
    elif isinstance(arg, tuple):
        for inner in arg:
            put_arg(inner, tags, bits, texts)


def _bits(number: float) -> int:
    return _LONG.unpack(_DOUBLE.pack(number))[0]


class ArgDecoder:
    """Makes arguments of tokens; equal references of a graph are one object.

    Args:
        report: Receives the problems.
        values: The number of values of the graph.
    """

    def __init__(self, report: Report, values: int) -> None:
        self.report = report
        self.values = values
        self.refs: dict[int, Ref] = {}

    def decode(
        self, tags: Sequence[int], bits: Sequence[int], texts: Sequence[str], where: str, index: int
    ) -> tuple[Arg, ...]:
        """Return the arguments that the tokens stand for.

        Args:
            tags: An :class:`ArgTag` per token.
            bits: A number per token.
            texts: The node's strings.
            where: Name of the graph, for messages.
            index: Index of the node, for messages.

        Returns:
            The arguments; empty if something is wrong, which then goes to the report.
        """
        if len(tags) != len(bits):
            return self.fail(where, index, f"{len(tags)} argument tags, {len(bits)} numbers")
        items: list[Arg] = []
        count = 0
        outer: list[tuple[list[Arg], int]] = []
        real: float | None = None
        for tag, number in zip(tags, bits, strict=True):
            if real is not None:
                if tag != _IMAGINARY:
                    break
                item = complex(real, *_DOUBLE.unpack(_LONG.pack(number)))
                real = None
            elif tag == _REF:
                item = self.refs.get(number)
                if item is None:
                    item = Ref(number)
                    if 0 <= number < self.values:
                        self.refs[number] = item
            elif tag == _INT:
                item = number
            elif tag == _NONE:
                item = None
            elif tag == _FLOAT:
                (item,) = _DOUBLE.unpack(_LONG.pack(number))
            elif tag == _COMPLEX:
                (real,) = _DOUBLE.unpack(_LONG.pack(number))
                continue
            elif tag == _BOOL and 0 <= number <= 1:
                item = number == 1
            elif tag == _DTYPE and number in _DTYPES:
                item = _DTYPES[number]
            elif tag == _TEXT and 0 <= number < len(texts):
                item = texts[number]
            elif tag == _LIST and number == 0:
                item = ()
            elif (
                tag == _LIST
                and 0 < number < len(tags)
                and len(outer) < self.report.limits.arg_depth
            ):
                outer.append((items, count))
                items, count = [], number
                continue
            else:
                return self.fail(where, index, f"argument tag {tag} with number {number}")
            items.append(item)
            while outer and len(items) == count:
                done = tuple(items)
                items, count = outer.pop()
                items.append(done)
        if real is not None:
            return self.fail(where, index, "a complex argument lacks its imaginary part")
        if outer:
            return self.fail(where, index, "a list argument has too few items")
        return tuple(items)

    def fail(self, where: str, index: int, what: str) -> tuple[Arg, ...]:
        """Note a problem of node ``index``."""
        self.report.add(f"{where} node {index}: {what}")
        return ()


def to_rows(program: Program, segments: Sequence[Row]) -> Row:
    """Return the root row of a verified program.

    Args:
        program: A program that :func:`pef_schema.verify.verify` accepts.
        segments: Rows of the table ``Segment``, one per segment.

    Returns:
        The row of the table ``Program``.
    """
    return (
        program.name,
        program.mapping,
        program.inference,
        [(r.name, r.shape, r.dtype, r.role, r.segment) for r in program.regions],
        [(s.name, s.region, s.grad_region) for s in program.symbols],
        [_graph_row(graph) for graph in program.graphs],
        [_optimizer_row(optimizer) for optimizer in program.optimizers],
        [(a.name, a.region, a.kind, a.default) for a in program.argins],
        [(s.name, [_step_row(step) for step in s.steps], s.twin) for s in program.sections],
        [(s.graph, [(c.call_id, c.section) for c in s.calls]) for s in program.schedules],
        segments,
        program.metadata,
    )


def from_rows(
    row: Row, segments: Sequence[bytes], *, path: str | None = None, limits: Limits = LIMITS
) -> Program:
    """Build the program from the root row; cross references are not checked here.

    Args:
        row: The row of the table ``Program``; the rows in it are used up.
        segments: The bytes of the constants.
        path: The file, for messages.
        limits: Bounds on nesting.

    Returns:
        The program, to be verified.

    Raises:
        PefInvalid: If an enum's number or an argument token is unknown, or a shape has too many
            sizes to work with; lists all of them.
    """
    report = Report(limits, path)
    name, mapping, inference, regions, symbols, graphs, optimizers, argins, sections = row[:9]
    program = Program(
        name=name,
        mapping=mapping,
        inference=bool(inference),
        regions=_release(regions, [_region(r, i, report) for i, r in enumerate(regions)]),
        symbols=_release(symbols, [Symbol(name=n, region=r, grad_region=g) for n, r, g in symbols]),
        graphs=tuple([_graph(r, i, report) for i, r in enumerate(graphs)]),
        optimizers=tuple([_optimizer(r, i, report) for i, r in enumerate(optimizers)]),
        argins=tuple([_argin(r, i, report) for i, r in enumerate(argins)]),
        sections=tuple([_section(r, i, report) for i, r in enumerate(sections)]),
        schedules=tuple([_schedule(r) for r in row[9]]),
        segments=tuple(segments),
        metadata=tuple([(key, value) for key, value in row[11]]),
    )
    report.raise_if_any()
    return program


def _release(rows: list[Row], results: list[_T]) -> tuple[_T, ...]:
    """Release the rows of what is made, which take as much memory, before more is made."""
    if rows:
        rows.clear()
    return tuple(results)


def _member(members: dict[int, _E], number: int, where: str, report: Report) -> _E:
    """Look an enum's member up; an unknown one is noted and stands in as the first."""
    member = members.get(number)
    if member is None:
        member = next(iter(members.values()))
        report.add(f"{where}: unknown {type(member).__name__} {number}")
    return member


_ROLES = _by_number(Role)
_SECTION_KINDS = _by_number(SectionKind)
_OPTIMIZER_KINDS = _by_number(OptimizerKind)
_ARGIN_KINDS = _by_number(ArginKind)
_OUTPUT_GRADS = _by_number(OutputGrad)


def _region(row: Row, index: int, report: Report) -> Region:
    name, shape, dtype, role, segment = row
    if len(shape) > report.limits.rank:
        report.add(f"region {index} ({name[:80]}): {report.shape(shape, 1)}")
    return Region(
        name=name,
        shape=shape,
        dtype=_DTYPES.get(dtype) or _member(_DTYPES, dtype, f"region {index}", report),
        role=_ROLES.get(role) or _member(_ROLES, role, f"region {index}", report),
        segment=segment,
    )


def _graph_row(graph: Graph) -> Row:
    return (
        graph.name,
        [_value_row(value) for value in graph.values],
        [_node_row(node) for node in graph.nodes],
        graph.inputs,
        [(o.name, o.value, o.region, o.grad_region, o.grad) for o in graph.outputs],
        [(u.value, u.region) for u in graph.updates],
        [_gradient_row(gradient) for gradient in graph.gradients],
    )  # fmt: skip


def _gradient_row(gradient: Gradient) -> Row:
    return (
        gradient.name,
        gradient.source,
        [_value_row(value) for value in gradient.values],
        [_node_row(node) for node in gradient.nodes],
        gradient.inputs,
        gradient.outputs,
    )


def _value_row(v: Value) -> Row:
    return v.name, v.shape, v.dtype, v.region, v.grad_region, v.needs_grad


def _graph(row: Row, index: int, report: Report) -> Graph:
    name, values, nodes, inputs, outputs, updates, gradients = row
    where = f"graph {index}"
    decoder = ArgDecoder(report, len(values))
    return Graph(
        name=name,
        values=_release(values, [_value(r, i, where, report) for i, r in enumerate(values)]),
        nodes=_release(nodes, [_node(r, i, where, decoder) for i, r in enumerate(nodes)]),
        inputs=inputs,
        outputs=tuple([_output(r, i, where, report) for i, r in enumerate(outputs)]),
        updates=tuple([Update(value=value, region=region) for value, region in updates]),
        gradients=tuple(
            [_gradient(r, f"{where} gradient {i}", report) for i, r in enumerate(gradients)]
        ),
    )


def _gradient(row: Row, where: str, report: Report) -> Gradient:
    name, source, values, nodes, inputs, outputs = row
    decoder = ArgDecoder(report, len(values))
    return Gradient(
        name=name,
        source=source,
        values=_release(values, [_value(r, i, where, report) for i, r in enumerate(values)]),
        nodes=_release(nodes, [_node(r, i, where, decoder) for i, r in enumerate(nodes)]),
        inputs=inputs,
        outputs=outputs,
    )


def _value(row: Row, index: int, where: str, report: Report) -> Value:
    name, shape, dtype, region, grad_region, needs_grad = row
    if len(shape) > report.limits.rank:
        report.add(f"{where} value {index}: {report.shape(shape, 1)}")
    return Value(
        name=name,
        shape=shape,
        dtype=_DTYPES.get(dtype) or _member(_DTYPES, dtype, f"{where} value {index}", report),
        region=region,
        grad_region=grad_region,
        needs_grad=needs_grad == 1,
    )


def _output(row: Row, index: int, where: str, report: Report) -> Output:
    name, value, region, grad_region, grad = row
    return Output(
        name=name,
        value=value,
        region=region,
        grad_region=grad_region,
        grad=_member(_OUTPUT_GRADS, grad, f"{where} output {index}", report),
    )


def _node_row(node: Node) -> Row:
    tags = bytearray()
    bits: list[int] = []
    texts: list[str] = []
    for arg in node.args:
        put_arg(arg, tags, bits, texts)
    for _, arg in node.kwargs:
        put_arg(arg, tags, bits, texts)
    names = tuple([name for name, _ in node.kwargs])
    outputs, module = node.outputs, node.module
    return (node.op, bytes(tags), tuple(bits), texts, names, outputs, module, node.source)


def _node(row: Row, index: int, where: str, decoder: ArgDecoder) -> Node:
    op, tags, bits, texts, names, outputs, module, source = row
    args = decoder.decode(tags, bits, texts, where, index)
    split = len(args) - len(names)
    kwargs: tuple[tuple[str, Arg], ...] = ()
    if split < 0:
        decoder.report.add(f"{where} node {index}: more keyword names than arguments")
    elif names:
        kwargs, args = tuple(zip(names, args[split:], strict=True)), args[:split]
    return Node(
        op=op, args=args, kwargs=kwargs, outputs=outputs, module=module, source=source
    )  # fmt: skip


def _optimizer_row(optimizer: Optimizer) -> Row:
    return (
        optimizer.name,
        optimizer.kind,
        [(p.weight, p.grad, p.states) for p in optimizer.params],
        optimizer.argins,
        optimizer.options,
        optimizer.step,
    )


def _optimizer(row: Row, index: int, report: Report) -> Optimizer:
    name, kind, params, argins, options, step = row
    return Optimizer(
        name=name,
        kind=_member(_OPTIMIZER_KINDS, kind, f"optimizer {index}", report),
        params=tuple([OptimizerParam(weight=w, grad=g, states=states) for w, g, states in params]),
        argins=tuple([(argin, region) for argin, region in argins]),
        options=tuple([(option, value) for option, value in options]),
        step=step,
    )


def _argin(row: Row, index: int, report: Report) -> Argin:
    name, region, kind, default = row
    known = _member(_ARGIN_KINDS, kind, f"argin {index}", report)
    return Argin(name=name, region=region, kind=known, default=default)


_step_row: Callable[[Step], Row] = attrgetter(
    *("kind", "graph", "nodes", "recompute", "optimizers"),
    *("max_norm", "reads", "writes", "accumulates"),
)


def _section(row: Row, index: int, report: Report) -> Section:
    name, steps, twin = row
    where = f"section {index}"
    return Section(name=name, steps=tuple([_step(r, where, report) for r in steps]), twin=twin)


def _step(row: Row, where: str, report: Report) -> Step:
    kind, graph, nodes, recompute, optimizers, max_norm, reads, writes, accumulates = row
    return Step(
        kind=_member(_SECTION_KINDS, kind, where, report),
        graph=graph,
        nodes=nodes,
        recompute=recompute,
        optimizers=optimizers,
        max_norm=max_norm,
        reads=reads,
        writes=writes,
        accumulates=accumulates,
    )


def _schedule(row: Row) -> Schedule:
    graph, calls = row
    return Schedule(
        graph=graph, calls=tuple([Call(call_id=number, section=s) for number, s in calls])
    )
