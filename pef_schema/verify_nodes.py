"""Rules of nodes: their arguments, their order, and that each value is made once."""

from __future__ import annotations

from pef_schema.program import Arg, DType, Gradient, Graph, Node, Ref
from pef_schema.verify_rules import Report
from pef_schema.verify_sizes import check_sizes, takes_sizes

_LOW, _HIGH = -(2**63), 2**63 - 1
_PLAIN = frozenset({DType, type(None), bool, float, complex})
"""Types of arguments about which there is nothing to check."""
_ARG_TYPES = frozenset({Ref, DType, type(None), bool, int, float, complex, str, tuple})


def check_nodes(graph: Graph | Gradient, where: str, known: bytearray, report: Report) -> None:
    """Check every node, and that each value is made once and before its use.

    Args:
        graph: Whose nodes.
        where: Its place, for messages.
        known: Which values are there before the first node; those that nodes make are added.
        report: Receives the problems.
    """
    values = graph.values
    count = len(values)
    made = bytearray(count)
    for index, node in enumerate(graph.nodes):
        for output in node.outputs:
            if output == -1:
                continue
            if not 0 <= output < count:
                report.index(f"{where} node {index}", "output value", output, count)
            elif made[output] or known[output]:
                report.add(f"{where} node {index}: value {output} has a second producer")
            else:
                made[output] = 1
    for index, value in enumerate(values):
        if value.region >= 0 and not made[index]:
            known[index] = 1
    sized: dict[str, bool] = {}
    for index, node in enumerate(graph.nodes):
        op = node.op
        if op not in sized:
            report.name(f"{where} node {index}", op)
            sized[op] = takes_sizes(op)
        if sized[op]:
            check_sizes(node, f"{where} node {index}", report)
        _check_node(node, index, where, known, report)
        for output in node.outputs:
            if 0 <= output < count:
                known[output] = 1


def _check_node(node: Node, index: int, where: str, known: bytearray, report: Report) -> None:
    """Check a node's texts and arguments."""
    limits = report.limits
    if not (node.module.isascii() and len(node.module) <= limits.name):
        report.text(f"{where} node {index}", node.module, limits.name)
    if not (node.source.isascii() and len(node.source) <= limits.source):
        report.text(f"{where} node {index}", node.source, limits.source)
    args: tuple[Arg, ...] = node.args
    if node.kwargs:
        place = f"{where} node {index}"
        names = [name for name, _ in node.kwargs]
        report.unique(f"{place} keyword", names)
        if names != sorted(names):
            report.add(f"{place}: keyword arguments are not sorted")
        args += tuple([arg for _, arg in node.kwargs])
    count = len(known)
    for arg in args:
        kind = type(arg)
        if isinstance(arg, Ref):
            # What nearly every argument is; everything else is looked at with its place.
            if not (0 <= arg.value < count and known[arg.value]):
                break
        elif isinstance(arg, int) and kind is int:
            if not _LOW <= arg <= _HIGH:
                break
        elif kind not in _PLAIN:
            break
    else:
        return
    _check_args(args, known, f"{where} node {index}", report)


def _check_args(args: tuple[Arg, ...], known: bytearray, place: str, report: Report) -> None:
    """Check a node's arguments level by level; ``depth`` counts the lists around them."""
    limits = report.limits
    depth = 0
    level = args
    while level:
        inner: list[tuple[Arg, ...]] = []
        for arg in level:
            kind = type(arg)
            if isinstance(arg, Ref):
                if not 0 <= arg.value < len(known):
                    report.index(place, "argument value", arg.value, len(known))
                elif not known[arg.value]:
                    report.add(f"{place}: value {arg.value} is used before it is made")
                if depth > limits.ref_depth:
                    report.add(f"{place}: a value inside more than {limits.ref_depth} lists")
            elif isinstance(arg, tuple):
                if arg:
                    inner.append(arg)
            elif isinstance(arg, int) and kind is int:
                if not _LOW <= arg <= _HIGH:
                    report.add(f"{place}: an integer argument beyond 64 bits")
            elif kind is str:
                report.text(place, arg, limits.source)  # pyright: ignore[reportArgumentType]  # kind says str
            elif kind not in _ARG_TYPES:
                report.add(f"{place}: argument of type {kind.__module__}.{kind.__qualname__}")
        depth += 1
        if inner and depth > limits.arg_depth:
            report.add(f"{place}: lists nested more than {limits.arg_depth} deep")
            return
        level = [arg for items in inner for arg in items]
