"""Verification of programs: every rule that their dataclasses cannot express.

The same checks run before a program is written and after one is read, so nothing that passes one
side is refused by the other. All problems are collected and raised as one error.
"""

from __future__ import annotations

from pef_schema.limits import LIMITS, Limits
from pef_schema.program import Program, Role
from pef_schema.structure import check_twins
from pef_schema.verify_graph import check_graph
from pef_schema.verify_rules import Report
from pef_schema.verify_run import (
    check_argins,
    check_optimizers,
    check_schedules,
    check_sections,
    check_settings,
)
from pef_schema.verify_steps import StepMemory, check_calls

_MAPPINGS = ("section", "spatial")


def verify(program: Program, *, path: str | None = None, limits: Limits = LIMITS) -> None:
    """Check names, indices, shapes, order and roles of a program.

    Args:
        program: The program.
        path: Where it came from, for messages.
        limits: Bounds to keep.

    Raises:
        PefInvalid: If any rule is broken; the error lists every problem, up to a thousand.
    """
    report = Report(limits, path)
    _check_program(program, report)
    _check_regions(program, report)
    _check_symbols(program, report)
    report.unique("graph", [graph.name for graph in program.graphs])
    nodes = sum(len(graph.nodes) for graph in program.graphs) + sum(
        len(gradient.nodes) for graph in program.graphs for gradient in graph.gradients
    )
    if nodes > limits.nodes:
        report.add(f"{nodes} nodes, at most {limits.nodes} are allowed")
    else:
        for index, graph in enumerate(program.graphs):
            check_graph(program, graph, f"graph {index}", report)
    check_optimizers(program, report)
    check_argins(program, report)
    if len(program.sections) > limits.sections:
        report.add(f"{len(program.sections)} sections, at most {limits.sections} are allowed")
    else:
        check_sections(program, report)
    check_schedules(program, report)
    report.raise_if_any()
    check_settings(program, report)
    report.raise_if_any()
    StepMemory(program, report).check()
    report.raise_if_any()
    check_calls(program, report)
    check_twins(program, report)
    report.raise_if_any()


def _check_program(program: Program, report: Report) -> None:
    name = program.name
    report.name("program", name)
    # The name becomes a folder and a file name: it must not lead anywhere else.
    if "/" in name or "\\" in name or name in (".", ".."):
        report.add(f"program: name {name[:80]!r} is not a file name")
    if program.mapping not in _MAPPINGS:
        report.add(f"program: mapping {program.mapping[:80]!r}, expected one of {_MAPPINGS}")
    keys = [key for key, _ in program.metadata]
    report.unique("metadata key", keys)
    if keys != sorted(keys):
        report.add("metadata: keys are not sorted")
    for index, (_, value) in enumerate(program.metadata):
        report.text(f"metadata {index}", value, report.limits.text)


def _check_regions(program: Program, report: Report) -> None:
    report.unique("region", [region.name for region in program.regions])
    segments = program.segments
    used: set[int] = set()
    for index, region in enumerate(program.regions):
        segment = region.segment
        fits = report.shape(region.shape, region.dtype.itemsize)
        if fits:
            report.add(f"region {index} ({region.name[:80]}): {fits}")
        if segment != -1:
            used.add(segment)
            if not 0 <= segment < len(segments):
                report.index(f"region {index}", "segment", segment, len(segments))
            elif not fits and len(segments[segment]) != region.nbytes:
                report.add(
                    f"region {index} ({region.name[:80]}): segment {segment} has "
                    f"{len(segments[segment])} bytes, shape and dtype need {region.nbytes}"
                )
        elif region.role is Role.CONSTANT:
            report.add(f"region {index} ({region.name[:80]}): a constant without a segment")
    unused = set(range(len(segments))) - used
    if unused:
        report.add(f"segments that no region uses: {sorted(unused)[:8]}")


def _check_symbols(program: Program, report: Report) -> None:
    report.unique("symbol", [symbol.name for symbol in program.symbols])
    count = len(program.regions)
    for index, symbol in enumerate(program.symbols):
        if not 0 <= symbol.region < count:
            report.index(f"symbol {index}", "region", symbol.region, count)
        if not -1 <= symbol.grad_region < count:
            report.index(f"symbol {index}", "grad_region", symbol.grad_region, count)
