"""Rules of what steps and full runs read and write: what a step takes it reads or makes, what it
writes it has, and every value is made before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pef_schema.printable import some_of
from pef_schema.program import Graph, OptimizerParam, Program, Role, Schedule, SectionKind, Step
from pef_schema.verify_rules import Report


@dataclass(slots=True, kw_only=True)
class _Ends:
    """What of a graph leaves its sections, found by region and by value.

    Args:
        copies: Values that outputs and updates copy to a region, by region.
        gradients: Regions of the outputs' gradients, by value.
        run: For each way to run nodes, which have a step that does.
    """

    copies: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    gradients: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    run: dict[str, bytearray] = field(default_factory=dict[str, bytearray])


class StepMemory:
    """Checks what the steps of one program read and write.

    Each node runs in one FWD step at most, is differentiated in one BCKWD step at most and
    computed again in one at most, so that the check takes time in proportion to the program. What
    steps without nodes may share is counted.

    Args:
        program: A program whose indices are in range.
        report: Receives the problems.
    """

    def __init__(self, program: Program, report: Report) -> None:
        self._program, self._report = program, report
        self._ends = [_ends(graph) for graph in program.graphs]
        self._params: dict[int, tuple[int, OptimizerParam]] = {}
        self._owner: dict[int, int] = {}
        # Once for all steps, each of which may name all optimizers.
        self._argins = [tuple([r for _, r in o.argins]) for o in program.optimizers]
        for index, optimizer in enumerate(program.optimizers):
            for param in optimizer.params:
                self._params[param.weight] = index, param
                self._owner[param.grad] = index
        self._checks: dict[SectionKind, Callable[[Step, str], None]] = {
            SectionKind.FWD: self._forward,
            SectionKind.BCKWD: self._backward,
            SectionKind.ZEROGRAD: self._zerograd,
            SectionKind.GRADNORM: self._gradnorm,
            SectionKind.OPT: self._opt,
            SectionKind.REDUCE: self._alone,
        }

    def check(self) -> None:
        """Check all steps of all sections.

        Raises:
            PefLimit: If steps share so much that looking at all of it would take long.
        """
        for index, section in enumerate(self._program.sections):
            where = f"section {index} ({section.name[:80]})"
            if len({step.graph for step in section.steps}) > 1:
                self._report.add(f"{where}: its steps are of several graphs")
            for step in section.steps:
                self._checks[step.kind](step, f"{where} {step.kind.name}")

    def _regions(self, problem: str, regions: set[int]) -> None:
        """Report regions, if there are any."""
        if regions:
            known = self._program.regions
            names = some_of(sorted(regions), 8, lambda r: f"{r} ({known[r].name[:80]})")
            self._report.add(f"{problem} {names}")

    def _first_time(self, step: Step, nodes: tuple[int, ...], how: str, where: str) -> bool:
        """Note that nodes run; False if one of them does so already."""
        run = self._ends[step.graph].run.setdefault(
            how, bytearray(len(self._program.graphs[step.graph].nodes))
        )
        twice = [i for i in nodes if run[i]]
        for i in nodes:
            run[i] = 1
        if twice:
            self._report.add(f"{where}: nodes {twice[:8]} are {how} by an earlier step")
        return not twice

    def _forward(self, step: Step, where: str) -> None:
        if not self._first_time(step, step.nodes, "run", where):
            return
        program, ends = self._program, self._ends[step.graph]
        graph, reads, writes = program.graphs[step.graph], {*step.reads}, {*step.writes}
        results = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
        inputs = {v for i in step.nodes for v in graph.nodes[i].refs()} - results
        targets: set[int] = set()
        for region in step.writes:
            values = ends.copies.get(region)
            if values is not None:
                # Steps without nodes may all write one region, which many outputs share.
                self._report.spend("what steps write", len(values))
                targets.add(region)
                inputs.update([value for value in values if value not in results])
        self._check_inputs(graph, inputs, reads, where)
        homes = {graph.values[v].region for v in results} - {-1}
        activations = {r for r in homes if program.regions[r].role is Role.ACTIVATION}
        self._regions(f"{where}: it computes but does not write", activations - writes)
        self._regions(f"{where}: it writes but does not compute", writes - activations - targets)
        if step.accumulates:
            self._report.add(f"{where}: it accumulates, which BCKWD steps alone can")

    def _check_inputs(self, graph: Graph, inputs: set[int], reads: set[int], where: str) -> None:
        """Check that values which a step does not make come from regions that it reads."""
        homeless = sorted(v for v in inputs if graph.values[v].region < 0)
        if homeless:
            names = ", ".join(graph.values[v].name[:80] for v in homeless[:8])
            self._report.add(f"{where}: it uses values that have no region: {names}")
        homes = {graph.values[v].region for v in inputs} - {-1}
        self._regions(f"{where}: it uses but does not read", homes - reads)

    def _backward(self, step: Step, where: str) -> None:
        first = self._first_time(step, step.nodes, "differentiated", where)
        again = self._first_time(step, step.recompute, "computed again", where)
        if not (first and again):
            return
        program, ends = self._program, self._ends[step.graph]
        graph, reads, writes = program.graphs[step.graph], {*step.reads}, {*step.writes}
        results = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
        values = graph.values
        inputs = {v for i in step.nodes for v in graph.nodes[i].refs()} - results
        wanting = {v for v in inputs if values[v].needs_grad}
        homeless = sorted(v for v in wanting if values[v].grad_region < 0)
        if homeless:
            names = ", ".join(values[v].name[:80] for v in homeless[:8])
            self._report.add(f"{where}: gradients that have no region: {names}")
        gradients = {values[v].grad_region for v in wanting} - {-1}
        self._regions(f"{where}: it computes but does not write gradients", gradients - writes)
        self._regions(f"{where}: it writes but does not compute", writes - gradients)
        starts = {values[v].grad_region for v in results} - {-1}
        for v in results:
            starts.update(ends.gradients.get(v, ()))
        self._regions(f"{where}: it starts from but does not read gradients", starts - reads)

    def _zerograd(self, step: Step, where: str) -> None:
        roles = self._program.regions
        others = {r for r in step.writes if roles[r].role is not Role.GRADIENT}
        self._regions(f"{where}: it writes regions that are not gradients:", others)
        self._alone(step, where)

    def _gradnorm(self, step: Step, where: str) -> None:
        regions, members = self._program.regions, {*step.optimizers}
        reads, writes = {*step.reads}, {*step.writes}
        foreign = {r for r in reads if self._owner.get(r) not in members}
        self._regions(f"{where}: it reads more than gradients of its optimizers:", foreign)
        own = len(reads) - len(foreign)
        count = sum(len(self._program.optimizers[i].params) for i in step.optimizers)
        if own != count:
            self._report.add(f"{where}: it reads {own} of {count} gradients of its optimizers")
        self._regions(f"{where}: it scales but does not write gradients", reads - writes)
        norms = writes - reads
        wrong = {r for r in norms if regions[r].role is not Role.METRIC or regions[r].shape}
        wrong |= {r for r in norms if not regions[r].dtype.is_floating}
        self._regions(
            f"{where}: it writes the norm to regions that are not a METRIC number:", wrong
        )
        self._alone(step, where)

    def _opt(self, step: Step, where: str) -> None:
        program, members = self._program, {*step.optimizers}
        reads, writes = {*step.reads}, {*step.writes}
        needed: set[int] = set()
        results: set[int] = set()
        for region in step.writes:
            owner, param = self._params.get(region, (-1, None))
            if param is not None and owner in members:
                needed.update((param.weight, param.grad, *param.states))
                results.update((param.weight, *param.states))
        counts: set[int] = set()
        for index in step.optimizers:
            needed.update(self._argins[index])
            counts.add(program.optimizers[index].step)
        counts.discard(-1)
        self._regions(f"{where}: it needs but does not read", (needed | counts) - reads)
        self._regions(f"{where}: it computes but does not write", results - writes)
        self._regions(f"{where}: it writes but does not compute", writes - results - counts)
        self._alone(step, where)

    def _alone(self, step: Step, where: str) -> None:
        if step.graph != -1:
            self._report.add(f"{where}: a step over regions has graph {step.graph}, expected -1")
        if step.accumulates:
            self._report.add(f"{where}: it accumulates, which BCKWD steps alone can")


def _ends(graph: Graph) -> _Ends:
    ends = _Ends()
    pairs = dict.fromkeys((item.region, item.value) for item in (*graph.outputs, *graph.updates))
    for region, value in pairs:
        ends.copies.setdefault(region, []).append(value)
    for output in graph.outputs:
        if output.grad_region >= 0:
            ends.gradients.setdefault(output.value, []).append(output.grad_region)
    return ends


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
            "expected one for each graph"
        )
    for index, schedule in enumerate(program.schedules):
        where = f"schedule {index}"
        # The device and its users find the schedule of a graph by the graph's number.
        if schedule.graph != index:
            report.add(f"{where}: it is of graph {schedule.graph}, expected graph {index}")
        _check_graph(program, schedule, where, report)


def _check_graph(program: Program, schedule: Schedule, where: str, report: Report) -> None:
    """Check the sections that a schedule calls, each where it is called for the first time."""
    graph = program.graphs[schedule.graph]
    produced = bytearray(len(graph.values))
    for node in graph.nodes:
        for v in node.outputs:
            if v >= 0:
                produced[v] = 1
    ready = bytearray(len(graph.values))
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
                        if produced[v] and not ready[v]:
                            name = graph.values[v].name[:80]
                            report.add(f"{place}: node {i} takes {name} before any call makes it")
                    for v in node.outputs:
                        if v >= 0:
                            ready[v] = 1
                written.update(step.writes)
    for number, output in enumerate(graph.outputs):
        if output.region not in written or (produced[output.value] and not ready[output.value]):
            report.add(f"{where}: no call writes output {number} ({output.name[:80]})")
    for number, update in enumerate(graph.updates):
        if update.region not in written or (produced[update.value] and not ready[update.value]):
            report.add(f"{where}: no call writes update {number}, region {update.region}")
