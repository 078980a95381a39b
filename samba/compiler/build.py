"""Build the Program of a traced model: the compiler's main path, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from emulator.op_facts.table import op_facts
from pef_schema.errors import SambaError
from pef_schema.program import Call, Graph, Optimizer, Program, Role, Schedule, Section
from pef_schema.structure import with_twins
from samba.compiler.flow import gradient_values
from samba.compiler.optimizer import GroupSpec, describe_optimizers
from samba.compiler.options import CompileOptions
from samba.compiler.placement import Placement, Shared
from samba.compiler.saved import backward_needs
from samba.compiler.sections import cut_sections
from samba.compiler.steps import make_sections
from samba.compiler.update import add_optimizers
from samba.tracer.traced import Traced


class BadLossIndex(SambaError):
    """``loss_indices`` names an output that the model does not have."""

    def __init__(self, *, found: tuple[int, ...], outputs: int) -> None:
        self.found, self.outputs = found, outputs
        super().__init__(
            f"loss_indices: found {list(found)}; the model has {outputs} output(s), "
            f"so wanted numbers from 0 to {outputs - 1}"
        )


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
    return _program([traced], describe_optimizers(optimizers), options)


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
    return _program(graphs, [], replace(options, inference=True))


def _program(graphs: Sequence[Traced], groups: list[GroupSpec], options: CompileOptions) -> Program:
    shared = Shared(state=_state_regions(graphs))
    parts: list[Graph] = []
    schedules: list[Schedule] = []
    optimizers: tuple[Optimizer, ...] = ()
    calls = 0
    for index, traced in enumerate(graphs):
        prefix = f"{traced.name}__" if len(graphs) > 1 else ""
        graph, sections, optimizers = _graph(traced, groups, options, shared, index, prefix)
        first = len(shared.sections)
        shared.sections += [replace(s, twin=first + i) for i, s in enumerate(sections)]
        parts.append(graph)
        schedules.append(
            Schedule(
                graph=index,
                calls=tuple(
                    Call(call_id=calls + i, section=first + i) for i in range(len(sections))
                ),
            )
        )
        calls += len(sections)
    program = Program(
        name=options.name,
        mapping=options.mapping,
        inference=options.inference,
        regions=tuple(shared.table.regions),
        symbols=tuple(shared.table.symbols),
        graphs=tuple(parts),
        optimizers=optimizers,
        argins=tuple(shared.argins),
        sections=tuple(shared.sections),
        schedules=tuple(schedules),
        segments=tuple(shared.table.segments),
        metadata=tuple(sorted(options.metadata)),
    )
    return with_twins(program)


def _state_regions(graphs: Sequence[Traced]) -> frozenset[str]:
    """Regions that are an output of some graph and an input of some graph."""
    inputs = {s.region_name for g in graphs for s in g.sources if s.role is Role.INPUT}
    return frozenset(inputs & {o.region_name for g in graphs for o in g.outputs})


def _graph(
    traced: Traced,
    groups: list[GroupSpec],
    options: CompileOptions,
    shared: Shared,
    index: int,
    prefix: str,
) -> tuple[Graph, list[Section], tuple[Optimizer, ...]]:
    ops = op_facts()
    losses = _losses(traced, options.loss_indices)
    sources = {s.value for s in traced.sources}
    starts = [o.value for o in traced.outputs if o.value not in sources]
    grads = (
        [False] * len(traced.values) if options.inference else gradient_values(traced, ops, starts)
    )
    cuts = cut_sections(
        traced,
        level=options.optim_level,
        mapping=options.mapping,
        budget=options.section_bytes,
        # Sections no larger than buckets, so that a bucket is full before the last of them.
        weight_budget=options.bucket_bytes if options.data_parallel else None,
    )
    placed = Placement(traced, shared, cuts, grads)
    placed.place_sources()
    updates = placed.place_updates()
    boundary = placed.boundary()
    stored = (
        frozenset(sources)
        | frozenset(boundary)
        | frozenset(v for v, value in enumerate(placed.values) if value.region >= 0)
    )
    needs = [
        backward_needs(
            cut, nodes=traced.nodes, values=placed.values, ops=ops, grads=grads, stored=stored
        )
        for cut in cuts
    ]
    outputs = placed.place_outputs(losses)
    placed.place_activations(boundary, needs)
    last = placed.last_writers(needs)
    placed.place_gradients(boundary, last, bucketed=options.data_parallel)
    buckets = placed.buckets(last, options.bucket_bytes) if options.data_parallel else ()
    optimizers = add_optimizers(
        groups,
        traced,
        placed.values,
        shared.table,
        shared.argins,
        inference=options.inference,
        buckets=[b.regions for b in buckets],
    )
    sections = make_sections(
        placed, needs, outputs, updates, buckets, optimizers, options, index=index, prefix=prefix
    )
    placed.name_tensors(outputs)
    graph = Graph(
        name=traced.name,
        values=tuple(placed.values),
        nodes=traced.nodes,
        inputs=traced.inputs,
        outputs=outputs,
        updates=updates,
    )
    return graph, sections, optimizers.optimizers


def _losses(traced: Traced, given: tuple[int, ...] | None) -> frozenset[int]:
    """Outputs seeded with ones: those given, else all scalars, else the first float one."""
    outputs = traced.outputs
    if given is not None:
        if any(i < 0 or i >= len(outputs) for i in given):
            raise BadLossIndex(found=given, outputs=len(outputs))
        return frozenset(given)
    floats = [i for i, o in enumerate(outputs) if traced.values[o.value].dtype.is_floating]
    scalars = [i for i in floats if traced.values[outputs[i].value].shape == ()]
    return frozenset(scalars or floats[:1])
