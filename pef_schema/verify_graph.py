"""Rules of one graph: values, their homes, node arguments and order."""

from __future__ import annotations

from pef_schema.program import Arg, DType, Graph, OutputGrad, Program, Ref, Role
from pef_schema.verify_rules import Report

_ARG_TYPES = frozenset({Ref, DType, type(None), bool, int, float, str, tuple})
_KEPT = frozenset({Role.INPUT, Role.CONSTANT, Role.WEIGHT, Role.ARGIN})
"""Roles of regions that the forward pass must not change."""


def check_graph(program: Program, graph: Graph, where: str, report: Report) -> None:
    """Check one graph.

    Args:
        program: The program it belongs to.
        graph: The graph.
        where: Its place, for messages.
        report: Receives the problems.
    """
    report.unique(f"{where} value", [value.name for value in graph.values])
    _check_values(program, graph, where, report)
    known = _check_inputs(graph, where, report)
    _check_nodes(graph, where, known, report)
    _check_results(program, graph, where, known, report)


def _check_values(program: Program, graph: Graph, where: str, report: Report) -> None:
    regions = program.regions
    count = len(regions)
    checked: set[tuple[tuple[int, ...], DType]] = set()
    for index, value in enumerate(graph.values):
        key = (value.shape, value.dtype)
        if key not in checked:
            checked.add(key)
            problem = report.shape(value.shape, value.dtype.itemsize)
            if problem:
                report.add(f"{where} value {index}: {problem}")
        if value.region != -1:
            if not 0 <= value.region < count:
                report.index(f"{where} value {index}", "region", value.region, count)
            else:
                home = regions[value.region]
                if home.shape != value.shape or home.dtype is not value.dtype:
                    report.add(
                        f"{where} value {index} ({value.name[:80]}): {value.dtype.name} "
                        f"{value.shape}, its region {home.dtype.name} {home.shape}"
                    )
        if value.grad_region != -1:
            if not 0 <= value.grad_region < count:
                report.index(f"{where} value {index}", "grad_region", value.grad_region, count)
            elif regions[value.grad_region].shape != value.shape:
                report.add(
                    f"{where} value {index} ({value.name[:80]}): shape {value.shape}, "
                    f"its gradient {regions[value.grad_region].shape}"
                )


def _check_inputs(graph: Graph, where: str, report: Report) -> bytearray:
    """Check the inputs and return which values are known before the first node."""
    known = bytearray(len(graph.values))
    for index in graph.inputs:
        if not 0 <= index < len(graph.values):
            report.index(where, "input value", index, len(graph.values))
        elif known[index]:
            report.add(f"{where}: value {index} is an input twice")
        else:
            known[index] = 1
            if graph.values[index].region < 0:
                report.add(f"{where}: input value {index} has no region")
    return known


def _check_nodes(graph: Graph, where: str, known: bytearray, report: Report) -> None:
    """Check every node, and that each value is made once and before its use."""
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
        if not made[index] and value.region >= 0:
            known[index] = 1
    named: set[str] = set()
    for index, node in enumerate(graph.nodes):
        place = f"{where} node {index}"
        if node.op not in named:
            named.add(node.op)
            report.name(place, node.op)
        if node.module:
            report.text(place, node.module, report.limits.name)
        if node.source:
            report.text(place, node.source, report.limits.source)
        args: tuple[Arg, ...] = node.args
        if node.kwargs:
            names = [name for name, _ in node.kwargs]
            report.unique(f"{place} keyword", names)
            if names != sorted(names):
                report.add(f"{place}: keyword arguments are not sorted")
            args += tuple([arg for _, arg in node.kwargs])
        _check_args(args, known, place, report)
        for output in node.outputs:
            if 0 <= output < count:
                known[output] = 1


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
            elif kind is int:
                if not -(2**63) <= arg < 2**63:
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


def _check_results(
    program: Program, graph: Graph, where: str, known: bytearray, report: Report
) -> None:
    """Check outputs and updates against values and regions."""
    regions = program.regions
    count = len(regions)
    for index, output in enumerate(graph.outputs):
        place = f"{where} output {index}"
        report.name(place, output.name)
        _check_copy(program, graph, output.value, output.region, place, known, report)
        if (output.grad is OutputGrad.ABSENT) != (output.grad_region == -1):
            report.add(f"{place}: {output.grad.name} with gradient region {output.grad_region}")
        elif not -1 <= output.grad_region < count:
            report.index(place, "grad_region", output.grad_region, count)
        elif output.grad_region >= 0 and 0 <= output.value < len(graph.values):
            shape = regions[output.grad_region].shape
            if shape != graph.values[output.value].shape:
                report.add(
                    f"{place}: shape {graph.values[output.value].shape}, its gradient {shape}"
                )
    updated: set[int] = set()
    for index, update in enumerate(graph.updates):
        place = f"{where} update {index}"
        _check_copy(program, graph, update.value, update.region, place, known, report)
        if update.region in updated:
            report.add(f"{place}: region {update.region} is updated twice")
        updated.add(update.region)
        if 0 <= update.region < count and regions[update.region].role in _KEPT:
            role = regions[update.region].role
            report.add(f"{place}: region {update.region} is {role.name}, which no update may write")


def _check_copy(
    program: Program,
    graph: Graph,
    index: int,
    region: int,
    place: str,
    known: bytearray,
    report: Report,
) -> None:
    """Check that a value exists and fits the region it is copied to."""
    values, regions = graph.values, program.regions
    if not 0 <= index < len(values):
        report.index(place, "value", index, len(values))
    elif not known[index]:
        report.add(f"{place}: value {index} is never made")
    if not 0 <= region < len(regions):
        report.index(place, "region", region, len(regions))
    elif 0 <= index < len(values):
        value, home = values[index], regions[region]
        if home.shape != value.shape or home.dtype is not value.dtype:
            report.add(
                f"{place}: value {index} is {value.dtype.name} {value.shape}, "
                f"its region {home.dtype.name} {home.shape}"
            )
