"""Give a region to every tensor of a graph that outlives a section.

The stages come one after the other, and each takes what the one before it returned: sources,
outputs, activations, gradients. Their order decides the numbers of the regions, and so the bytes
of a PEF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pef_schema.program import ArginKind, Output, OutputGrad, Role, Update
from samba.compiler.backward_needs import BackwardNeeds
from samba.compiler.boundary import Boundary
from samba.compiler.placed import (
    PlacedActivations,
    PlacedGraph,
    PlacedOutputs,
    PlacedSources,
)
from samba.compiler.regions import RegionTable
from samba.compiler.sectioned import SectionedGraph
from samba.tracer.traced import Source

_SOURCE_ROLES = (
    *(Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT, Role.ARGIN, Role.SEED),
    Role.METRIC,
)


def place_sources(graph: SectionedGraph, table: RegionTable) -> PlacedSources:
    """Give regions to inputs, weights, buffers, constants, argins and seeds, role by role.

    Args:
        graph: The graph.
        table: Region table to add to.

    Raises:
        RegionConflict: If tensors that share a region do not agree.
    """
    values = list(graph.traced.values)
    for role in _SOURCE_ROLES:
        for source in graph.traced.sources:
            if source.role is role:
                region = _add_source(graph, source, table)
                values[source.value] = replace(values[source.value], region=region)
    updates = []
    for new, old in graph.traced.updates:
        home = values[old].region
        updates.append(Update(value=new, region=home))
        if graph.source_of[old].role is Role.SEED:
            # Sections after the first read the advanced seed where it is written.
            values[new] = replace(values[new], region=home)
    return PlacedSources(graph=graph, values=tuple(values), updates=tuple(updates))


def _add_source(graph: SectionedGraph, source: Source, table: RegionTable) -> int:
    value = graph.traced.values[source.value]
    data = None
    if source.role is Role.CONSTANT and source.tensor is not None:
        data = tensor_bytes(source.tensor)
    region = table.add(
        source.region_name,
        value.shape,
        value.dtype,
        Role.BUFFER if graph.is_state(source) or source.role is Role.METRIC else source.role,
        share=source.role not in (Role.CONSTANT, Role.METRIC),
        data=data,
    )
    if source.role is Role.ARGIN:
        table.add_argin(source.name, region, ArginKind.DROPOUT_RATE, source.default)
    elif source.role is Role.SEED:
        table.add_argin(source.name, region, ArginKind.DROPOUT_SEED, 0.0)
    return region


def place_outputs(
    sources: PlacedSources, losses: frozenset[int], table: RegionTable
) -> PlacedOutputs:
    """Give regions to results and to their gradients.

    Args:
        sources: The stage before.
        losses: Outputs whose gradients start as ones.
        table: Region table to add to.

    Raises:
        RegionConflict: If tensors that share a region do not agree.
    """
    graph = sources.graph
    outputs = []
    for i, traced in enumerate(graph.traced.outputs):
        value = sources.values[traced.value]
        name, place = traced.name, traced.region_name
        region = table.add(
            place or name,
            value.shape,
            value.dtype,
            Role.BUFFER if place in graph.state else Role.OUTPUT,
            share=bool(place),
        )
        grad, grad_region = OutputGrad.ABSENT, -1
        if graph.starts_backward(traced.value):
            grad = OutputGrad.ONES if i in losses else OutputGrad.NONE
            grad_region = table.add(f"{name}__grad", value.shape, value.dtype, Role.OUTPUT_GRADIENT)
        outputs.append(
            Output(name=name, value=traced.value, region=region, grad_region=grad_region, grad=grad)
        )
    return PlacedOutputs(sources=sources, outputs=tuple(outputs))


def place_activations(
    outputs: PlacedOutputs, boundary: Boundary, needs: Sequence[BackwardNeeds], table: RegionTable
) -> PlacedActivations:
    """Give regions to what later sections or the backward pass take from a section.

    Args:
        outputs: The stage before.
        boundary: What passes from section to section.
        needs: What the backward pass of each section needs.
        table: Region table to add to.
    """
    values = list(outputs.sources.values)
    taken = {r.name for r in table.regions}
    for v in sorted({v for need in needs for v in need.saves} | set(boundary.values)):
        value = values[v]
        if value.region < 0:
            name = f"{value.name}__saved" if value.name in taken else value.name
            region = table.add(name, value.shape, value.dtype, Role.ACTIVATION)
            values[v] = replace(value, region=region)
    return PlacedActivations(
        outputs=outputs, boundary=boundary, needs=tuple(needs), values=tuple(values)
    )


def place_gradients(
    placed: PlacedActivations, table: RegionTable, *, bucketed: bool
) -> PlacedGraph:
    """Give regions to the gradients of sources and of values at a section boundary.

    Args:
        placed: The stage before.
        table: Region table to add to.
        bucketed: Whether weights' gradients are to lie in buckets.
    """
    sources, values = placed.outputs.sources, list(placed.values)
    graph = sources.graph
    last = _last_writers(placed)
    ordered = list(graph.traced.sources)
    if bucketed:
        # In the order in which the backward pass finishes them: a bucket's gradients are
        # neighbours then, and region numbers tell their order in it.
        ordered.reverse()
        ordered.sort(
            key=lambda s: (s.role is not Role.WEIGHT, -last.get(values[s.value].region, 0))
        )
    for v in (source.value for source in ordered if graph.grads[source.value]):
        value = values[v]
        name = f"{table.regions[value.region].name}__grad"
        region = table.add(name, value.shape, value.dtype, Role.GRADIENT, share=True)
        values[v] = replace(value, grad_region=region)
    for v in (v for v in placed.boundary.values if graph.grads[v]):
        value = values[v]
        name = f"{value.name}__cotangent"
        region = table.add(name, value.shape, value.dtype, Role.COTANGENT)
        values[v] = replace(value, grad_region=region)
    return PlacedGraph(
        graph=graph,
        values=tuple(
            replace(value, needs_grad=True) if grad else value
            for value, grad in zip(values, graph.grads, strict=True)
        ),
        outputs=placed.outputs.outputs,
        output_writers=placed.boundary.output_writers,
        updates=sources.updates,
        update_writers=placed.boundary.update_writers,
        needs=placed.needs,
        last_writers=last,
    )


def _last_writers(placed: PlacedActivations) -> dict[int, int]:
    """For each region of a source with a gradient, the section that writes that gradient last.

    Backward sections run in reverse, so that is the first section that uses the source.
    """
    graph = placed.outputs.sources.graph
    last: dict[int, int] = {}
    for section in reversed(range(len(graph.sections))):
        for i in placed.needs[section].nodes:
            for v in graph.traced.nodes[i].refs():
                if v in graph.source_of and graph.grads[v]:
                    last[placed.values[v].region] = section
    return last


def name_tensors(placed: PlacedGraph, table: RegionTable) -> None:
    """Let users find sources and results by name; names of earlier graphs stay theirs.

    Args:
        placed: The graph with all its regions.
        table: Table to add to.
    """
    for source in placed.graph.traced.sources:
        if source.role in (Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT):
            value = placed.values[source.value]
            table.name_tensor(source.name, value.region, value.grad_region)
    for output in placed.outputs:
        table.name_tensor(output.name, output.region, output.grad_region)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The contents of a tensor, row-major, little-endian."""
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
