"""The values that steps make and read when they run as one executable, in the order of their nodes.

Every value is made once: a sum of gradients is a value of its own, so that what was added up ends
where the sum begins. A backward section whose forward section runs in the same executable computes
nothing again: it reads what that has made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emulator.costs.touched import unused
from emulator.op_facts.facts import Fusing, gradient_reads
from emulator.op_facts.scratch import Scratch, scratch_of
from emulator.op_facts.table import facts_of
from pef_schema.module_paths import plain_path
from pef_schema.program import Graph, Node, OutputGrad, Program, Role, SectionKind, Step, Value
from pef_schema.program_facts import plain_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value with room of its own.

    Args:
        name: Of the value or the region.
        role: Of its region, or ACTIVATION and COTANGENT for values and gradients without one.
        nbytes: Its bytes.
        region: The region that it is; -1 for a value inside the executable.
        graph, node: The node that makes it, or whose gradient does; -1 for memory that was there.
    """

    name: str
    role: Role
    nbytes: int
    region: int = -1
    graph: int = -1
    node: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that is computed: a node, its gradient, a sum of gradients, an update.

    Args:
        step: Position of its step.
        graph, node: The node; -1 for work on regions alone.
        backward: Whether it belongs to the backward pass.
        reads: Buffers it reads.
        makes: Buffers it makes.
        fusing: What becomes of both.
        scratch: Bytes that it takes beside them.
    """

    step: int
    graph: int = -1
    node: int = -1
    backward: bool = False
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    fusing: Fusing
    scratch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All that steps compute.

    Args:
        buffers: All buffers.
        works: What is computed, in order.
        given: Those of the executable's arguments, by region.
        left: The buffers that regions hold afterwards, by region.
    """

    buffers: tuple[Buffer, ...]
    works: tuple[Work, ...]
    given: dict[int, int]
    left: dict[int, int]


def trace(
    program: Program,
    steps: Sequence[Step],
    *,
    seeded: Collection[int] = (),
    resting: Collection[int] | None = None,
) -> Trace:
    """Find what steps compute as one executable.

    Args:
        program: The program.
        steps: Steps in the order to run.
        seeded, resting: As :func:`emulator.costs.touched.unused` takes them.
    """
    tracer = _Tracer(program, seeded, resting)
    for position, step in enumerate(steps):
        tracer.run(position, step)
    return tracer.result()


def buffer_of(program: Program, region: int) -> Buffer:
    """A region as a buffer.

    Args:
        program: The program.
        region: Its index.
    """
    of = program.regions[region]
    return Buffer(name=of.name, role=of.role, nbytes=of.nbytes, region=region)


class _Tracer:
    def __init__(
        self, program: Program, seeded: Collection[int], resting: Collection[int] | None
    ) -> None:
        self._program, self._seeded, self._resting = program, seeded, resting
        self._buffers: list[Buffer] = []
        self._works: list[Work] = []
        self._given: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._written: set[int] = set()
        self._values: dict[tuple[int, int], int] = {}
        """Buffers by graph and value."""
        self._kept: dict[tuple[int, int], int] = {}
        """What nodes keep for their gradients, by graph and node."""
        self._at = 0

    def result(self) -> Trace:
        return Trace(
            buffers=tuple(self._buffers),
            works=tuple(self._works),
            given=self._given,
            left={region: self._memory[region] for region in sorted(self._written)},
        )

    def run(self, position: int, step: Step) -> None:
        """Add what a step computes."""
        self._at = position
        idle = unused(self._program, step, seeded=self._seeded, resting=self._resting)
        match step.kind:
            case SectionKind.FWD:
                self._forward(step)
            case SectionKind.BCKWD:
                self._backward(step)
            case SectionKind.REDUCE:
                for region in step.reads:
                    self._write(region, self._region(region))
                self._pass_by(-1, -1)
            case _:
                self._update(step, idle)

    # -- buffers -------------------------------------------------------------

    def _new(self, buffer: Buffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _region(self, region: int) -> int:
        """What a region holds now."""
        buffer = self._memory.get(region)
        if buffer is None:
            buffer = self._new(buffer_of(self._program, region))
            self._given[region] = self._memory[region] = buffer
        return buffer

    def _write(self, region: int, buffer: int) -> None:
        self._memory[region] = buffer
        self._written.add(region)

    def _value(self, graph: int, value: int) -> int:
        buffer = self._values.get((graph, value))
        if buffer is None:
            region = self._program.graphs[graph].values[value].region
            if region >= 0:
                return self._region(region)
            # What no gradient reads: zeros stand for it, which take no room.
            of = self._program.graphs[graph].values[value]
            buffer = self._new(Buffer(name=of.name, role=Role.ACTIVATION, nbytes=0))
            self._values[graph, value] = buffer
        return buffer

    def _pass_by(self, graph: int, node: int, *, backward: bool = False) -> None:
        """Note something that moves nothing: what is alive is alive there, too."""
        self._do((), (), Fusing.VIEW, graph=graph, node=node, backward=backward)

    def _do(
        self,
        reads: tuple[int, ...],
        makes: tuple[int, ...],
        fusing: Fusing,
        *,
        graph: int = -1,
        node: int = -1,
        backward: bool = False,
        scratch: int = 0,
    ) -> None:
        """Note something that the step computes."""
        self._works.append(
            Work(
                step=self._at,
                graph=graph,
                node=node,
                backward=backward,
                reads=reads,
                makes=makes,
                fusing=fusing,
                scratch=scratch,
            )
        )

    # -- forward -------------------------------------------------------------

    def _forward(self, step: Step) -> None:
        graph = self._program.graphs[step.graph]
        self._run_nodes(step.graph, graph, step.nodes)
        produced = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
        writes = set(step.writes)
        for v in sorted(produced):
            if graph.values[v].region in writes:
                self._write(graph.values[v].region, self._values[step.graph, v])
        for output in graph.outputs:
            if output.region in writes:
                self._write(output.region, self._value(step.graph, output.value))
        for update in graph.updates:
            if update.region in writes:
                self._write(update.region, self._value(step.graph, update.value))

    def _run_nodes(self, at: int, graph: Graph, indices: Sequence[int]) -> None:
        for i in indices:
            node = graph.nodes[i]
            fusing = facts_of(node.op).fuses
            reads = [self._value(at, v) for v in dict.fromkeys(node.refs())]
            if fusing is Fusing.VIEW and reads:
                for place, v in enumerate(node.outputs):
                    if v >= 0:
                        self._values[at, v] = reads[min(place, len(reads) - 1)]
                self._pass_by(at, i)
                continue
            makes: list[int] = []
            for v in node.outputs:
                if v >= 0:
                    value = graph.values[v]
                    self._values[at, v] = self._new(
                        Buffer(
                            name=value.name,
                            role=Role.ACTIVATION,
                            nbytes=value.nbytes,
                            graph=at,
                            node=i,
                        )
                    )
                    makes.append(self._values[at, v])
            scratch = scratch_of(graph, node)
            self._keep(at, i, node, scratch, makes)
            self._do(tuple(reads), tuple(makes), fusing, graph=at, node=i, scratch=scratch.forward)

    def _keep(self, at: int, i: int, node: Node, scratch: Scratch, makes: list[int]) -> None:
        if scratch.kept:
            name = f"{plain_name(node.op)} of {plain_path(node.module) or i}"
            self._kept[at, i] = self._new(
                Buffer(name=name, role=Role.ACTIVATION, nbytes=scratch.kept, graph=at, node=i)
            )
            makes.append(self._kept[at, i])

    # -- backward ------------------------------------------------------------

    def _backward(self, step: Step) -> None:
        at, graph = step.graph, self._program.graphs[step.graph]
        again = [
            i
            for i in step.recompute
            if not all(v < 0 or (at, v) in self._values for v in graph.nodes[i].outputs)
        ]
        for i in step.nodes:
            for v in graph.nodes[i].refs():
                region = graph.values[v].region
                if (at, v) not in self._values and region in self._memory:
                    self._values[at, v] = self._memory[region]
        self._run_nodes(at, graph, again)
        gradients = self._seeds(step, graph)
        for i in reversed(step.nodes):
            self._pull(at, graph, i, gradients)
        self._collect(step, graph, gradients)

    def _seeds(self, step: Step, graph: Graph) -> dict[int, int]:
        """Gradients that come from outside: later sections and the host; ones take no room."""
        reads = set(step.reads)
        produced = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
        seeds = {
            v: self._region(graph.values[v].grad_region)
            for v in sorted(produced)
            if graph.values[v].grad_region in reads
        }
        for output in graph.outputs:
            if output.value not in produced or output.grad_region not in reads:
                continue
            if output.grad_region in self._seeded:
                self._add(seeds, step.graph, graph, output.value, self._region(output.grad_region))
            elif output.grad is OutputGrad.ONES and output.value not in seeds:
                seeds[output.value] = self._new(
                    Buffer(name=f"{output.name}__grad", role=Role.COTANGENT, nbytes=0)
                )
        return seeds

    def _pull(self, at: int, graph: Graph, i: int, gradients: dict[int, int]) -> None:
        """The gradient of one node."""
        node = graph.nodes[i]
        values = graph.values
        incoming = [gradients[v] for v in node.outputs if v >= 0 and v in gradients]
        targets = [v for v in dict.fromkeys(node.refs()) if values[v].needs_grad]
        if not incoming or not targets:
            return
        facts = facts_of(node.op)
        fusing = facts.fuses
        if fusing is Fusing.VIEW and len(incoming) == len(targets) == 1:
            self._add(gradients, at, graph, targets[0], incoming[0])
            self._pass_by(at, i, backward=True)
            return
        read = {
            self._value(at, v): None
            for v in gradient_reads(node, facts, lambda v: values[v].needs_grad)
        }
        residual = self._kept.get((at, i))
        if residual is not None:
            read[residual] = None
        scratch = scratch_of(graph, node).backward
        largest = max(values[v].nbytes for v in node.outputs if v >= 0)
        for v in targets:
            size = values[v].nbytes
            # A gradient of what was broadcast is a sum.
            kind = fusing if size == largest or not fusing.holds else Fusing.REDUCES
            grad = self._new(
                Buffer(
                    name=self._gradient_name(values[v]), role=Role.COTANGENT, nbytes=size,
                    graph=at, node=i,
                )
            )  # fmt: skip
            self._do(
                (*incoming, *read), (grad,), kind, graph=at, node=i, backward=True, scratch=scratch
            )
            self._add(gradients, at, graph, v, grad)

    def _add(self, gradients: dict[int, int], at: int, graph: Graph, value: int, more: int) -> None:
        have = gradients.get(value)
        if have is not None:
            more = self._sum(at, graph.values[value], have, more)
        gradients[value] = more

    def _gradient_name(self, value: Value) -> str:
        """What a gradient is called: its region's name if it has one."""
        region = value.grad_region
        return self._program.regions[region].name if region >= 0 else f"{value.name}__grad"

    def _sum(self, at: int, value: Value, have: int, more: int) -> int:
        total = self._new(
            Buffer(name=self._gradient_name(value), role=Role.COTANGENT, nbytes=value.nbytes)
        )
        self._do((have, more), (total,), Fusing.CHEAP, graph=at, backward=True)
        return total

    def _collect(self, step: Step, graph: Graph, gradients: dict[int, int]) -> None:
        writes, adds = set(step.writes), set(step.accumulates)
        produced = {v for i in step.nodes for v in graph.nodes[i].outputs}
        sums: dict[int, int] = {}
        for i in step.nodes:
            for v in dict.fromkeys(graph.nodes[i].refs()):
                region = graph.values[v].grad_region
                if v in produced or region not in writes or v not in gradients:
                    continue
                gradient, value = gradients.pop(v), graph.values[v]
                have = sums.get(region, self._region(region) if region in adds else None)
                if have is not None:
                    gradient = self._sum(step.graph, value, have, gradient)
                sums[region] = gradient
        for region, gradient in sums.items():
            self._write(region, gradient)

    # -- updates -------------------------------------------------------------

    def _update(self, step: Step, idle: set[int]) -> None:
        """ZEROGRAD, GRADNORM and OPT: elementwise over regions."""
        reads = [self._region(r) for r in step.reads if r not in idle]
        makes: list[int] = []
        for r in step.writes:
            if r not in idle:
                makes.append(self._new(buffer_of(self._program, r)))
                self._write(r, makes[-1])
        self._do(tuple(reads), tuple(makes), Fusing.CHEAP)
