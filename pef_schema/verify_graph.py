"""Rules of one graph: values, their homes, inputs, outputs and updates."""

from __future__ import annotations

from pef_schema.program import DType, Graph, OutputGrad, Program, Region, Role, Value
from pef_schema.verify_gradient import check_gradients
from pef_schema.verify_nodes import check_nodes
from pef_schema.verify_rules import Report

_KEPT = frozenset({Role.INPUT, Role.CONSTANT, Role.ARGIN})
"""Roles of regions that the forward pass must not change; an embedding may renorm its weight."""
_HOMES = frozenset(
    {
        Role.INPUT,
        Role.WEIGHT,
        Role.BUFFER,
        Role.CONSTANT,
        Role.ACTIVATION,
        Role.OUTPUT,
        Role.ARGIN,
        Role.SEED,
    }
)
"""Roles of regions that hold values of the forward pass."""
_GRADIENTS = frozenset({Role.GRADIENT, Role.COTANGENT})
"""Roles of regions that hold gradients of values."""


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
    check_nodes(graph, where, known, report)
    _check_results(program, graph, where, known, report)
    check_gradients(graph, where, report)


def _check_values(program: Program, graph: Graph, where: str, report: Report) -> None:
    regions = program.regions
    count = len(regions)
    # By identity: values share their shapes, and a hash of numbers can be made to collide.
    checked: set[tuple[int, DType]] = set()
    for index, value in enumerate(graph.values):
        key = (id(value.shape), value.dtype)
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
                if home.role not in _HOMES:
                    report.add(
                        f"{where} value {index} ({value.name[:80]}): region {value.region} is "
                        f"{home.role.name}, which holds no values of a forward pass"
                    )
        if value.grad_region != -1:
            if not 0 <= value.grad_region < count:
                report.index(f"{where} value {index}", "grad_region", value.grad_region, count)
            else:
                _check_gradient(value, regions[value.grad_region], f"{where} value {index}", report)
        if value.needs_grad and not value.dtype.has_gradient:
            report.add(
                f"{where} value {index} ({value.name[:80]}): {value.dtype.name} carries no gradient"
            )


def _check_gradient(value: Value, home: Region, place: str, report: Report) -> None:
    """Check the region of a value's gradient."""
    place = f"{place} ({value.name[:80]})"
    if home.shape != value.shape:
        report.add(f"{place}: shape {value.shape}, its gradient {home.shape}")
    elif home.dtype is not value.dtype:
        report.add(f"{place}: {value.dtype.name}, its gradient {home.dtype.name}")
    if home.role not in _GRADIENTS:
        report.add(f"{place}: its gradient is {home.role.name}, wanted GRADIENT or COTANGENT")


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
            value, home = graph.values[output.value], regions[output.grad_region]
            if home.shape != value.shape:
                report.add(f"{place}: shape {value.shape}, its gradient {home.shape}")
            elif home.dtype is not value.dtype:
                report.add(f"{place}: {value.dtype.name}, its gradient {home.dtype.name}")
            if home.role is not Role.OUTPUT_GRADIENT:
                report.add(f"{place}: its gradient is {home.role.name}, wanted OUTPUT_GRADIENT")
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
