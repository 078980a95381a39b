"""Build the Program of a traced model: the compiler's main path, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pef_schema.program import Call, Graph, Optimizer, Program, Role, Schedule, Section
from pef_schema.structure import with_twins
from samba.compiler.gradient_flow import find_gradient_flow
from samba.compiler.optimizers import describe_optimizers, place_optimizers
from samba.compiler.placement import PlacedGraph, RegionTable, place
from samba.compiler.sections import CompileOptions, divide
from samba.compiler.steps import NamedSteps, section_steps
from samba.tracer.traced import Traced


def build_program(
    traced: Traced, optimizers: Sequence[torch.optim.Optimizer], options: CompileOptions
) -> Program:
    """Compile a traced model and its optimizers into a Program.

    Args:
        traced: The graph from :func:`samba.tracer.capture.trace_model`.
        optimizers: Optimizers over the model's parameters; none for inference.
        options: Settings.

    Returns:
        The program; the same arguments give an equal one.

    Raises:
        SambaError: If loss indices, optimizers or shared regions do not fit the model.
    """
    return _program([traced], optimizers, options)


def build_multigraph(graphs: Sequence[Traced], options: CompileOptions) -> Program:
    """Compile several traced models, or parts of one, into a Program for inference.

    Regions of the same name are one region: weights of a module that was traced several times,
    and whatever tensors were given a common ``sn_region_name``. A region that is both an output
    and an input is state: what one run writes there, the next one reads.

    Args:
        graphs: Traced graphs with different names, in the order of their schedules.
        options: Settings.

    Returns:
        The program, with one schedule for each graph.

    Raises:
        SambaError: If tensors that share a region do not agree.
    """
    return _program(graphs, (), replace(options, inference=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledGraph:
    """One graph of a program, whose sections have no numbers yet."""

    graph: Graph
    optimizers: tuple[Optimizer, ...]
    sections: list[NamedSteps]


def _program(
    graphs: Sequence[Traced], optimizers: Sequence[torch.optim.Optimizer], options: CompileOptions
) -> Program:
    table, state = RegionTable(), _state_regions(graphs)
    compiled = [
        _graph(traced, optimizers, options, index=index, state=state, table=table)
        for index, traced in enumerate(graphs)
    ]
    sections: list[Section] = []
    schedules: list[Schedule] = []
    for index, part in enumerate(compiled):
        prefix = f"{part.graph.name}__" if len(compiled) > 1 else ""
        # Every section has one call, with its own number.
        numbers = range(len(sections), len(sections) + len(part.sections))
        calls = tuple(Call(call_id=n, section=n) for n in numbers)
        schedules.append(Schedule(graph=index, calls=calls))
        sections += [
            Section(name=f"{prefix}{named.name}", steps=named.steps, twin=n)
            for n, named in zip(numbers, part.sections, strict=True)
        ]
    program = Program(
        name=options.name,
        mapping=options.mapping,
        inference=options.inference,
        regions=tuple(table.regions),
        symbols=tuple(table.symbols),
        graphs=tuple(part.graph for part in compiled),
        optimizers=tuple(o for part in compiled for o in part.optimizers),
        argins=tuple(table.argins),
        sections=tuple(sections),
        schedules=tuple(schedules),
        segments=tuple(table.segments),
        metadata=tuple(sorted(options.metadata)),
    )
    return with_twins(program)


def _state_regions(graphs: Sequence[Traced]) -> frozenset[str]:
    """Regions that are an output of some graph and an input of some graph."""
    inputs = {s.region_name for g in graphs for s in g.sources if s.role is Role.INPUT}
    return frozenset(inputs & {o.region_name for g in graphs for o in g.outputs})


def _graph(
    traced: Traced,
    optimizers: Sequence[torch.optim.Optimizer],
    options: CompileOptions,
    *,
    index: int,
    state: frozenset[str],
    table: RegionTable,
) -> _CompiledGraph:
    """Compile one graph; each stage takes what those before it returned."""
    flow = find_gradient_flow(
        traced, inference=options.inference, loss_indices=options.loss_indices, state=state
    )
    graph, boundary = divide(flow, options, index=index)
    placed = place(graph, boundary, table, bucketed=options.data_parallel)
    described = describe_optimizers(optimizers)  # what is not known is refused for inference, too
    groups = [] if options.inference else described
    updating = place_optimizers(groups, placed, table)
    return _CompiledGraph(
        graph=_bare_graph(placed),
        optimizers=updating,
        sections=section_steps(placed, groups, updating, table, options),
    )


def _bare_graph(placed: PlacedGraph) -> Graph:
    traced = placed.graph.traced
    return Graph(
        name=traced.name,
        values=placed.values,
        nodes=traced.nodes,
        inputs=traced.inputs,
        outputs=placed.outputs,
        updates=placed.updates,
        gradients=traced.gradients,
    )
