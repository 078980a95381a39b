"""The cost of nodes, sections and schedules.

One definition serves all: the cost of steps that run as *one executable*. A section is its own
steps; a schedule is the steps of all its calls, and costs less than the sum of its sections: what
one leaves for the other stays inside, and nothing is computed twice. Of memory the least is
counted that has to move: a region that is read, once, in full unless rows of it are chosen by
index; a region that is written, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from emulator.costs.roofline import Cost
from emulator.costs.touched import (
    inside,
    readers_of,
    resting_optimizers,
    unused,
    update_flops,
)
from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.flops import Flops, gradient_flops, node_flops
from emulator.op_facts.table import facts_of
from pef_schema.program import (
    DType,
    Gradient,
    Graph,
    Node,
    OutputGrad,
    Program,
    Ref,
    SectionKind,
    Step,
)

_CHOOSES_ROWS_NAMES = """
aten.embedding.default aten.embedding_bag.default aten.embedding_bag.padding_idx
aten._embedding_bag.default aten.index_select.default aten.gather.default
aten.index.Tensor aten._unsafe_index.Tensor aten.take.default aten.take_along_dim.default
"""
_CHOOSES_ROWS = frozenset(_CHOOSES_ROWS_NAMES.split())
"""Ops that read of their first argument what others of their arguments point at."""


def node_cost(graph: Graph | Gradient, node: Node) -> Cost:
    """The cost of one node by itself, its values in memory.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node.

    Returns:
        Its operations, and the bytes of the values that it takes and makes. What only gives a
        value another shape moves nothing.
    """
    if facts_of(node.op).view:
        return Cost(work=node_flops(graph, node))
    reads = sum(_bytes_taken(graph, node, v) for v in dict.fromkeys(node.refs()))
    return Cost(
        work=node_flops(graph, node),
        bytes_read=reads,
        bytes_written=sum(graph.values[v].nbytes for v in node.outputs if v >= 0),
    )


def gradient_cost(graph: Graph, node: Node) -> Cost:
    """The cost of the gradient of one node by itself, its values in memory.

    Args:
        graph: Its graph.
        node: The node.

    Returns:
        Its operations; the bytes of the values and gradients that it takes, and of the gradients
        that it makes. Nothing where no argument wants a gradient.
    """
    values = graph.values
    targets = [v for v in dict.fromkeys(node.refs()) if values[v].needs_grad]
    incoming = [v for v in node.outputs if v >= 0 and values[v].needs_grad]
    if not targets or not incoming:
        return Cost()
    work = gradient_flops(graph, node, again=True)
    facts = facts_of(node.op)
    if facts.view and graph.gradient_of(node) is None:
        return Cost(work=work)
    read = set(gradient_reads(node, facts, lambda v: values[v].needs_grad))
    return Cost(
        work=work,
        bytes_read=sum(values[v].nbytes for v in (*read, *incoming)),
        bytes_written=sum(values[v].nbytes for v in targets),
    )


class Costs:
    """The costs of a program, for whoever asks several questions: what they share is found once.

    Losses start from ones and all other gradients of outputs from nothing, as long as the host
    sets none. A REDUCE step moves nothing: there is one replica.

    Args:
        program: The program.

    Example:
        >>> from pef_schema.program import Schedule
        >>> empty = Program(
        ...     name="empty", mapping="section", inference=True, regions=(), symbols=(), graphs=(),
        ...     optimizers=(), argins=(), sections=(), schedules=(Schedule(graph=0, calls=()),),
        ... )
        >>> Costs(empty).of_schedule(0).nbytes
        0
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._readers = readers_of(program)
        self._resting = resting_optimizers(program)
        self._sizes = [region.nbytes for region in program.regions]
        self._flops: dict[tuple[int, int, bool | None], Flops] = {}
        self._moves: dict[int, tuple[dict[int, int], tuple[int, ...]]] = {}

    def of_section(self, section: int) -> Cost:
        """The cost of a section that runs by itself."""
        return self.of_steps(self._program.sections[section].steps)

    def of_schedule(self, schedule: int) -> Cost:
        """The cost of a full run of one graph as one executable."""
        sections, calls = self._program.sections, self._program.schedules[schedule].calls
        return self.of_steps([step for call in calls for step in sections[call.section].steps])

    def of_steps(self, steps: Sequence[Step]) -> Cost:
        """The cost of steps of its sections that run one after the other as one executable."""
        work: list[Flops] = []
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        run: dict[int, set[int]] = {}
        """Nodes that were run, by graph."""
        for position, step in enumerate(steps):
            if step.kind is SectionKind.REDUCE:
                continue
            reads, writes = self._reads_and_writes(step)
            for r, size in reads.items():
                if r not in written:
                    read[r] = min(read.get(r, 0) + size, self._sizes[r])
            written.update(dict.fromkeys(writes, position))
            work += self._step_flops(step, run.setdefault(step.graph, set()))
        outputs = written.keys() - inside(self._program, steps, read.keys(), written, self._readers)
        return Cost(
            work=_sum(work),
            bytes_read=sum(read.values()),
            bytes_written=sum(self._sizes[r] for r in outputs),
        )

    def _reads_and_writes(self, step: Step) -> tuple[dict[int, int], tuple[int, ...]]:
        """Bytes that a step reads by region, and the regions that it writes."""
        moves = self._moves.get(id(step))
        if moves is None:
            idle = unused(self._program, step, resting=self._resting)
            chosen = _bytes_chosen(self._program, step)
            sizes = self._sizes
            reads = {r: min(chosen.get(r, sizes[r]), sizes[r]) for r in step.reads if r not in idle}
            moves = reads, tuple([r for r in step.writes if r not in idle])
            self._moves[id(step)] = moves
        return moves

    def _step_flops(self, step: Step, run: set[int]) -> list[Flops]:
        """Operations of a step; what it runs is added to the nodes that were run."""
        if step.kind is SectionKind.FWD:
            run.update(step.nodes)
            return [self._forward(step.graph, i) for i in step.nodes]
        if step.kind is SectionKind.BCKWD:
            return self._backward_flops(step, run)
        return [update_flops(self._program, step)]

    def _backward_flops(self, step: Step, run: set[int]) -> list[Flops]:
        """Nodes that run again, gradients of those that a gradient reaches, and sums of both."""
        graph = self._program.graphs[step.graph]
        work = [self._forward(step.graph, i) for i in step.recompute if i not in run]
        known = run | set(step.recompute)
        run |= known
        reached = _seeds(self._program, graph, step)
        additions = 0
        for i in reversed(step.nodes):
            node = graph.nodes[i]
            if not any(v in reached for v in node.outputs):
                continue
            work.append(self._gradient(step.graph, i, again=i not in known))
            for v in dict.fromkeys(node.refs()):
                if graph.values[v].needs_grad:
                    additions += math.prod(graph.values[v].shape) if v in reached else 0
                    reached.add(v)
        additions += sum(math.prod(self._program.regions[r].shape) for r in step.accumulates)
        return [*work, Flops(other=additions)]

    def _forward(self, graph: int, node: int) -> Flops:
        flops = self._flops.get((graph, node, None))
        if flops is None:
            of = self._program.graphs[graph]
            flops = self._flops[graph, node, None] = node_flops(of, of.nodes[node])
        return flops

    def _gradient(self, graph: int, node: int, *, again: bool) -> Flops:
        flops = self._flops.get((graph, node, again))
        if flops is None:
            of = self._program.graphs[graph]
            flops = gradient_flops(of, of.nodes[node], again=again)
            self._flops[graph, node, again] = flops
        return flops


def section_cost(program: Program, section: int) -> Cost:
    """The cost of a section that runs by itself.

    Args:
        program: The program.
        section: Its id.
    """
    return Costs(program).of_section(section)


def schedule_cost(program: Program, schedule: int) -> Cost:
    """The cost of a full run of one graph as one executable.

    Args:
        program: The program.
        schedule: Index of its schedule.
    """
    return Costs(program).of_schedule(schedule)


def _bytes_taken(graph: Graph | Gradient, node: Node, value: int) -> int:
    """Bytes of a value that a node reads."""
    whole = graph.values[value].nbytes
    if node.op not in _CHOOSES_ROWS or not node.args or node.args[0] != Ref(value):
        return whole
    if sum(v == value for v in node.refs()) > 1:
        return whole
    itemsize = graph.values[value].dtype.itemsize
    if "embedding_bag" in node.op:
        indices = next(iter(v for v in node.refs() if v != value), value)
        rows = math.prod(graph.values[indices].shape)
        return min(whole, rows * math.prod(graph.values[value].shape[1:]) * itemsize)
    count = sum(math.prod(graph.values[v].shape) for v in node.outputs if v >= 0)
    return min(whole, count * itemsize)


def _bytes_chosen(program: Program, step: Step) -> dict[int, int]:
    """Regions of which a step reads chosen rows alone, with the bytes of these."""
    if step.graph < 0:
        return {}
    graph = program.graphs[step.graph]
    nodes = step.nodes if step.kind is SectionKind.FWD else step.recompute
    chosen: dict[int, int] = {}
    whole: set[int] = set()
    for i in nodes:
        node = graph.nodes[i]
        for v in dict.fromkeys(node.refs()):
            region = graph.values[v].region
            if region >= 0:
                size = _bytes_taken(graph, node, v)
                if size < program.regions[region].nbytes:
                    chosen[region] = chosen.get(region, 0) + size
                else:
                    whole.add(region)
    if step.kind is SectionKind.BCKWD:
        # A gradient reads whole values; one that only scatters rows does not read the table.
        whole |= set(_read_by_gradients(program, step))
    else:
        # A copy for the host.
        whole |= {graph.values[o.value].region for o in graph.outputs if o.region in step.writes}
        whole |= {graph.values[u.value].region for u in graph.updates if u.region in step.writes}
    return {r: n for r, n in chosen.items() if r not in whole}


def _read_by_gradients(program: Program, step: Step) -> Iterator[int]:
    graph = program.graphs[step.graph]
    for i in step.nodes:
        node = graph.nodes[i]
        facts = facts_of(node.op)
        for v in gradient_reads(node, facts, lambda v: graph.values[v].needs_grad):
            yield graph.values[v].region


def _seeds(program: Program, graph: Graph, step: Step) -> set[int]:
    """Values that have a gradient before the step begins: of later sections, and of losses."""
    reads = set(step.reads)
    produced = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
    cotangents = {v for v in produced if graph.values[v].grad_region in reads}
    losses = {
        o.value
        for o in graph.outputs
        if o.value in produced and o.grad_region in reads and o.grad is OutputGrad.ONES
    }
    return cotangents | losses


def _sum(parts: Iterable[Flops]) -> Flops:
    products: dict[DType, int] = {}
    other, unknown = 0, set[str]()
    for part in parts:
        for dtype, flops in part.products:
            products[dtype] = products.get(dtype, 0) + flops
        other += part.other
        unknown.update(part.unknown)
    return Flops(
        products=tuple(sorted(products.items())), other=other, unknown=tuple(sorted(unknown))
    )
