"""Rules of custom gradients: each is a function of its own, and fits the nodes that refer to it."""

from __future__ import annotations

from typing import TypeGuard

from pef_schema.program import CUSTOM_GRADIENT, Arg, Gradient, Graph, Node, Ref, Value
from pef_schema.verify_nodes import check_nodes
from pef_schema.verify_rules import Report


def check_gradients(graph: Graph, where: str, report: Report) -> None:
    """Check the custom gradients of a graph, and the nodes that refer to them.

    Args:
        graph: The graph; its nodes have been checked.
        where: Its place, for messages.
        report: Receives the problems.
    """
    for index, gradient in enumerate(graph.gradients):
        _check_gradient(gradient, f"{where} gradient {index}", report)
    used: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.op == CUSTOM_GRADIENT:
            used |= _check_node(graph, node, f"{where} node {index}", report)
    unused = set(range(len(graph.gradients))) - used
    if unused:
        report.add(f"{where}: gradients that no node uses: {sorted(unused)[:8]}")


def _check_gradient(gradient: Gradient, where: str, report: Report) -> None:
    report.name(where, gradient.name)
    report.text(where, gradient.source, report.limits.source)
    report.unique(f"{where} value", [value.name for value in gradient.values])
    for index, value in enumerate(gradient.values):
        problem = report.shape(value.shape, value.dtype.itemsize)
        if problem:
            report.add(f"{where} value {index}: {problem}")
        if value.region != -1 or value.grad_region != -1 or value.needs_grad:
            report.add(f"{where} value {index}: a region or a gradient, which it cannot have")
    known = bytearray(len(gradient.values))
    for index in gradient.inputs:
        if not 0 <= index < len(known):
            report.index(where, "input value", index, len(known))
        elif known[index]:
            report.add(f"{where}: value {index} is an input twice")
        else:
            known[index] = 1
    check_nodes(gradient, where, known, report)
    for index, node in enumerate(gradient.nodes):
        if node.op == CUSTOM_GRADIENT:
            report.add(f"{where} node {index}: a custom gradient within a custom gradient")
    for index in gradient.outputs:
        if not 0 <= index < len(known):
            report.index(where, "output value", index, len(known))
        elif not known[index]:
            report.add(f"{where}: output value {index} is never made")


def _check_node(graph: Graph, node: Node, where: str, report: Report) -> set[int]:
    """Check that a node fits its gradient; return the indices of gradients that it uses."""
    if len(node.args) != 4 or node.kwargs:
        report.add(f"{where}: {len(node.args)} arguments, a custom gradient takes 4")
        return set()
    index, results, inputs, reads = node.args
    if type(index) is not int:
        report.add(f"{where}: its gradient is of type {type(index).__name__}, wanted an index")
        return set()
    if not 0 <= index < len(graph.gradients):
        report.index(where, "gradient", index, len(graph.gradients))
        return set()
    if not (_are_values(results) and _are_values(inputs) and _are_values(reads)):
        report.add(f"{where}: a custom gradient takes three lists of values")
        return {index}
    if len(node.outputs) != len(results):
        report.add(f"{where}: {len(node.outputs)} outputs of {len(results)} results")
        return {index}
    gradient, count = graph.gradients[index], len(graph.values)
    if any(not 0 <= ref.value < count for ref in (*results, *inputs, *reads)):
        return {index}  # said already
    outer, inner = graph.values, gradient.values
    for result, output in zip(results, node.outputs, strict=True):
        if 0 <= output < count and _form(outer[result.value]) != _form(outer[output]):
            report.add(f"{where}: result {result.value} has another form than output {output}")
    for what, given, wanted in (
        ("results and reads", (*results, *reads), gradient.inputs),
        ("inputs", inputs, gradient.outputs),
    ):
        if len(given) != len(wanted):
            report.add(f"{where}: {len(given)} {what}, gradient {index} has {len(wanted)} of them")
            continue
        for ref, local in zip(given, wanted, strict=True):
            if 0 <= local < len(inner) and _form(outer[ref.value]) != _form(inner[local]):
                report.add(
                    f"{where}: value {ref.value} is {_text(outer[ref.value])}, value {local} of "
                    f"gradient {index} is {_text(inner[local])}"
                )
    for ref in (*results, *inputs):
        if not outer[ref.value].dtype.has_gradient:
            report.add(f"{where}: value {ref.value} cannot carry a gradient")
    return {index}


def _are_values(arg: Arg) -> TypeGuard[tuple[Ref, ...]]:
    return isinstance(arg, tuple) and all(isinstance(item, Ref) for item in arg)


def _form(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype


def _text(value: Value) -> str:
    return f"{value.dtype.name} {value.shape}"
