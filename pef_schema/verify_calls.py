"""Rules of full runs: a schedule for each graph, and every value made before it is taken."""

from __future__ import annotations

from pef_schema.program import Program, Schedule, SectionKind
from pef_schema.verify_rules import Report


def check_calls(program: Program, report: Report) -> None:
    """Check that schedules run the graphs that they name, whole and in order.

    Args:
        program: A program whose indices are in range.
        report: Receives the problems.
    """
    if program.sections and not program.graphs:
        report.add(f"program: {len(program.sections)} sections, but no graph")
    if len(program.schedules) != len(program.graphs):
        report.add(
            f"program: {len(program.schedules)} schedules of {len(program.graphs)} graphs, "
            "wanted one for each graph"
        )
    for index, schedule in enumerate(program.schedules):
        where = f"schedule {index}"
        # The device and its users find the schedule of a graph by the graph's number.
        if schedule.graph != index:
            report.add(f"{where}: it is of graph {schedule.graph}, wanted graph {index}")
        _check_graph(program, schedule, where, report)


def _check_graph(program: Program, schedule: Schedule, where: str, report: Report) -> None:
    """Check the sections that a schedule calls, each where it is called for the first time."""
    graph = program.graphs[schedule.graph]
    produced = bytearray(len(graph.values))
    for node in graph.nodes:
        for v in node.outputs:
            if v >= 0:
                produced[v] = 1
    made = bytearray(len(graph.values))
    written: set[int] = set()
    called: set[int] = set()
    for call in schedule.calls:
        if call.section in called:
            continue
        called.add(call.section)
        place = f"{where} call {call.call_id}"
        for step in program.sections[call.section].steps:
            if step.graph not in (-1, schedule.graph):
                report.add(
                    f"{place}: section {call.section} is of graph {step.graph}, "
                    f"the schedule of graph {schedule.graph}"
                )
            elif step.kind is SectionKind.FWD:
                for i in step.nodes:
                    node = graph.nodes[i]
                    for v in node.refs():
                        if produced[v] and not made[v]:
                            name = graph.values[v].name[:80]
                            report.add(f"{place}: node {i} takes {name} before any call makes it")
                    for v in node.outputs:
                        if v >= 0:
                            made[v] = 1
                written.update(step.writes)
    for number, output in enumerate(graph.outputs):
        if output.region not in written or (produced[output.value] and not made[output.value]):
            report.add(f"{where}: no call writes output {number} ({output.name[:80]})")
    for number, update in enumerate(graph.updates):
        if update.region not in written or (produced[update.value] and not made[update.value]):
            report.add(f"{where}: no call writes update {number}, region {update.region}")
