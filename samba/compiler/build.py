"""Build the Program of a traced model: the compiler's main path, in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pef_schema.program import Program, Role
from samba.compiler.gradient_flow import find_gradient_flow
from samba.compiler.optimizers import UpdatedGraph, place_optimizers, refuse_shared_weights
from samba.compiler.placement import RegionTable, place
from samba.compiler.sections import CompileOptions, divide
from samba.compiler.steps import write_down
from samba.tracer.traced import Traced


def build_program(
    traced: Traced | Sequence[Traced],
    optimizers: Sequence[torch.optim.Optimizer],
    options: CompileOptions,
) -> Program:
    """Compile a traced model and its optimizers, or several graphs, into a Program.

    Regions of the same name are one region: weights of a module that was traced several times,
    and whatever tensors were given a common ``sn_region_name``. A region that is both an output
    and an input is state: what one run writes there, the next one reads.

    Args:
        traced: The graph from :func:`samba.tracer.capture.trace_model`; or several with different
            names, in the order of their schedules, for inference.
        optimizers: Optimizers over the model's parameters; none for inference.
        options: Settings.

    Returns:
        The program, with a schedule for each graph; the same arguments give an equal one.

    Raises:
        SambaError: If loss indices, optimizers or shared regions do not fit the model.
    """
    graphs = [traced] if isinstance(traced, Traced) else traced
    for graph in graphs:
        refuse_shared_weights(graph, () if options.inference else optimizers)
    table, state = RegionTable(), _state_regions(graphs)
    updated = [
        _updated(graph, optimizers, options, index=index, state=state, table=table)
        for index, graph in enumerate(graphs)
    ]
    return write_down(updated, table, options)


def _state_regions(graphs: Sequence[Traced]) -> frozenset[str]:
    """Regions that are an output of some graph and an input of some graph."""
    inputs = {s.region_name for g in graphs for s in g.sources if s.role is Role.INPUT}
    return frozenset(inputs & {o.region_name for g in graphs for o in g.outputs})


def _updated(
    traced: Traced,
    optimizers: Sequence[torch.optim.Optimizer],
    options: CompileOptions,
    *,
    index: int,
    state: frozenset[str],
    table: RegionTable,
) -> UpdatedGraph:
    """Compile one graph, up to its steps; each stage takes what those before it returned."""
    flow = find_gradient_flow(
        traced, inference=options.inference, loss_indices=options.loss_indices, state=state
    )
    graph, boundary = divide(flow, options, index=index)
    placed = place(graph, boundary, table, bucketed=options.data_parallel)
    return place_optimizers(optimizers, placed, table, inference=options.inference)
