"""The cost of nodes, sections and schedules.

One definition serves all: the cost of steps that run as *one executable*. A section is its own
steps; a schedule is the steps of all its calls, and costs less than the sum of its sections: what
one leaves for the other stays inside, and nothing is computed twice. Of memory the least is
counted that has to move: a region that is read, once, in full unless rows of it are chosen by
index; a region that is written, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from emulator.costs.cost import Cost
from emulator.costs.touched import Readers, inside, readers_of, unused
from emulator.costs.updates import update_flops
from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.flops import Flops, gradient_flops, node_flops
from emulator.op_facts.table import facts_of
from pef_schema.program import (
    Gradient,
    Graph,
    Node,
    OutputGrad,
    Program,
    Ref,
    SectionKind,
    Step,
    Value,
)

__all__ = [
    "gradient_cost",
    "node_cost",
    "schedule_cost",
    "section_cost",
    "steps_cost",
]

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
        bytes_written=sum(_nbytes(graph.values[v]) for v in node.outputs if v >= 0),
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
    given = [v for v in node.outputs if v >= 0 and values[v].needs_grad]
    if not targets or not given:
        return Cost()
    work = gradient_flops(graph, node, again=True)
    facts = facts_of(node.op)
    if facts.view and graph.gradient_of(node) is None:
        return Cost(work=work)
    read = set(gradient_reads(node, facts, lambda v: values[v].needs_grad))
    return Cost(
        work=work,
        bytes_read=sum(_nbytes(values[v]) for v in (*read, *given)),
        bytes_written=sum(_nbytes(values[v]) for v in targets),
    )


def section_cost(program: Program, section: int, readers: Readers | None = None) -> Cost:
    """The cost of a section that runs by itself.

    Args:
        program: The program.
        section: Its id.
        readers: What :func:`readers_of` says of the program, for whoever asks of many sections.
    """
    return steps_cost(program, program.sections[section].steps, readers)


def schedule_cost(program: Program, schedule: int) -> Cost:
    """The cost of a full run of one graph as one executable.

    Args:
        program: The program.
        schedule: Index of its schedule.

    Example:
        >>> from pef_schema.program import Schedule
        >>> empty = Program(
        ...     name="empty", mapping="section", inference=True, regions=(), symbols=(), graphs=(),
        ...     optimizers=(), argins=(), sections=(), schedules=(Schedule(graph=0, calls=()),),
        ... )
        >>> schedule_cost(empty, 0).nbytes
        0
    """
    calls = program.schedules[schedule].calls
    return steps_cost(program, [s for c in calls for s in program.sections[c.section].steps])


def steps_cost(program: Program, steps: Sequence[Step], readers: Readers | None = None) -> Cost:
    """The cost of steps that run one after the other as one executable.

    Losses start from ones and all other gradients of outputs from nothing, as long as the host
    sets none. A REDUCE step moves nothing: there is one replica.

    Args:
        program: The program.
        steps: Steps of its sections, in order.
        readers: As :func:`section_cost` takes them.
    """
    work = Flops()
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    run: dict[int, set[int]] = {}
    """Nodes that were run, by graph."""
    for position, step in enumerate(steps):
        if step.kind is SectionKind.REDUCE:
            continue
        idle = unused(program, step)
        chosen = _bytes_chosen(program, step)
        for r in step.reads:
            if r not in idle and r not in written:
                part = min(chosen.get(r, program.regions[r].nbytes), program.regions[r].nbytes)
                read[r] = min(read.get(r, 0) + part, program.regions[r].nbytes)
        written.update((r, position) for r in step.writes if r not in idle)
        work = work + _step_flops(program, step, run.setdefault(step.graph, set()))
    found = readers_of(program) if readers is None else readers
    kept = written.keys() - inside(program, steps, read.keys(), written, found)
    return Cost(
        work=work,
        bytes_read=sum(read.values()),
        bytes_written=sum(program.regions[r].nbytes for r in kept),
    )


def _nbytes(value: Value) -> int:
    return math.prod(value.shape) * value.dtype.itemsize


def _bytes_taken(graph: Graph | Gradient, node: Node, value: int) -> int:
    """Bytes of a value that a node reads."""
    whole = _nbytes(graph.values[value])
    if node.op not in _CHOOSES_ROWS or not node.args or node.args[0] != Ref(value):
        return whole
    if sum(v == value for v in node.refs()) > 1:
        return whole
    itemsize = graph.values[value].dtype.itemsize
    if "embedding_bag" in node.op:
        indices = next(iter(v for v in node.refs() if v != value), value)
        rows = math.prod(graph.values[indices].shape)
        return min(whole, rows * math.prod(graph.values[value].shape[1:]) * itemsize)
    made = sum(math.prod(graph.values[v].shape) for v in node.outputs if v >= 0)
    return min(whole, made * itemsize)


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
                taken = _bytes_taken(graph, node, v)
                if taken < program.regions[region].nbytes:
                    chosen[region] = chosen.get(region, 0) + taken
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


# -- operations of a step ---------------------------------------------------


def _step_flops(program: Program, step: Step, run: set[int]) -> Flops:
    """Operations of a step, and what it adds to the nodes that were run."""
    if step.kind is SectionKind.FWD:
        graph = program.graphs[step.graph]
        run.update(step.nodes)
        return _sum(node_flops(graph, graph.nodes[i]) for i in step.nodes)
    if step.kind is SectionKind.BCKWD:
        return _backward_flops(program, step, run)
    return update_flops(program, step)


def _backward_flops(program: Program, step: Step, run: set[int]) -> Flops:
    """Of a BCKWD step: nodes that run again, gradients of those that a gradient reaches, sums."""
    graph = program.graphs[step.graph]
    total = _sum(node_flops(graph, graph.nodes[i]) for i in step.recompute if i not in run)
    known = run | set(step.recompute)
    run |= set(step.recompute)
    reached = _started(program, graph, step)
    additions = 0
    for i in reversed(step.nodes):
        node = graph.nodes[i]
        if not any(v in reached for v in node.outputs):
            continue
        total = total + gradient_flops(graph, node, again=i not in known)
        for v in dict.fromkeys(node.refs()):
            if graph.values[v].needs_grad:
                additions += math.prod(graph.values[v].shape) if v in reached else 0
                reached.add(v)
    additions += sum(math.prod(program.regions[r].shape) for r in step.accumulates)
    return total + Flops(other=additions)


def _started(program: Program, graph: Graph, step: Step) -> set[int]:
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


def _sum(parts: Iterator[Flops]) -> Flops:
    total = Flops()
    for part in parts:
        total = total + part
    return total
