"""The regions of a program: the table of them, and which tensors of a graph get one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pef_schema.errors import SambaError
from pef_schema.program import (
    Argin,
    ArginKind,
    DType,
    Output,
    OutputGrad,
    Region,
    Role,
    Symbol,
    Update,
    Value,
)
from samba.compiler.sections import BackwardNeeds, Boundary, SectionedGraph
from samba.tracer.traced import Source


class RegionConflict(SambaError):
    """Two tensors share a region name but not a shape, dtype or role."""

    def __init__(self, *, name: str, first: Region, second: Region) -> None:
        self.name, self.first, self.second = name, first, second
        super().__init__(
            f"region {name}: one tensor has {_text(first)}, another {_text(second)}; "
            "tensors that share sn_region_name must agree. Give one of them another region name."
        )


def _text(region: Region) -> str:
    return f"shape {list(region.shape)} {region.dtype.name.lower()} as {region.role.name.lower()}"


@dataclass(slots=True)
class RegionTable:
    """The regions of a program, with the argins, symbols and constants that belong to them.

    All graphs and optimizers of a program add to one table, and nothing is changed or taken away:
    a region's number is its place in the order of adding. That order decides the bytes of a PEF,
    so it stays the same from version to version.
    """

    regions: list[Region] = field(default_factory=list)
    argins: list[Argin] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    segments: list[bytes] = field(default_factory=list)
    _by_name: dict[str, int] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        role: Role,
        *,
        share: bool = False,
        data: bytes | None = None,
    ) -> int:
        """Add a region, or find it again where ``share`` allows.

        Args:
            name: Wanted name; made unique with a suffix unless shared.
            shape, dtype, role: Of the region.
            share: Whether an existing region of that name is meant.
            data: Initial bytes of a constant.

        Returns:
            The region's index.

        Raises:
            RegionConflict: If a shared region differs.
        """
        segment = -1
        if data is not None:
            segment = len(self.segments)
            self.segments.append(data)
        region = Region(name=name, shape=shape, dtype=dtype, role=role, segment=segment)
        known = self._by_name.get(name)
        if known is not None and share:
            first = self.regions[known]
            if (first.shape, first.dtype, first.role) != (shape, dtype, role):
                raise RegionConflict(name=name, first=first, second=region)
            return known
        unique, number = name, 0
        while unique in self._by_name:
            number += 1
            unique = f"{name}_{number}"
        self._by_name[unique] = len(self.regions)
        self.regions.append(replace(region, name=unique))
        return self._by_name[unique]

    def add_argin(self, name: str, region: int, kind: ArginKind, default: float) -> None:
        """Let the host set a region before a run.

        Args:
            name: Name of the argin. Where several graphs share the region, the first names it.
            region: The region.
            kind: What it is for.
            default: Its value until the host sets another.
        """
        if all(argin.region != region for argin in self.argins):
            self.argins.append(Argin(name=name, region=region, kind=kind, default=default))

    def name_tensor(self, name: str, region: int, grad_region: int) -> None:
        """Let users find a tensor by its own name.

        Args:
            name: The name. Where several graphs have it, the first one's tensor keeps it.
            region: Region of the tensor.
            grad_region: Region of its gradient, -1 if there is none.
        """
        if name not in self._named:
            self._named.add(name)
            self.symbols.append(Symbol(name=name, region=region, grad_region=grad_region))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGraph:
    """A graph with all its regions; its sections can be written down.

    Args:
        graph: The graph.
        values: Its values with their regions and those of their gradients.
        outputs: Its results.
        updates: State that it changes.
        boundary: The sections that write the regions of these, and what backward sections need.
        last_writers: For each region of a source with a gradient, the section whose backward
            pass is the last to write that gradient.
    """

    graph: SectionedGraph
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    updates: tuple[Update, ...]
    boundary: Boundary
    last_writers: Mapping[int, int]

    def weight_gradients(self) -> dict[int, int]:
        """The regions of the weights' gradients, with the regions of their weights."""
        weights = [self.values[s.value] for s in self.graph.traced.sources if s.role is Role.WEIGHT]
        return {w.grad_region: w.region for w in weights if w.grad_region >= 0}


_SOURCE_ROLES = (
    *(Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT, Role.ARGIN, Role.SEED),
    Role.METRIC,
)


def place(
    graph: SectionedGraph, boundary: Boundary, table: RegionTable, *, bucketed: bool
) -> PlacedGraph:
    """Give a region to every tensor of a graph that outlives a section.

    Sources come first, then outputs, activations and gradients. That order decides the numbers of
    the regions, and so the bytes of a PEF.

    Args:
        graph: The graph.
        boundary: What passes between its sections.
        table: Region table to add to.
        bucketed: Whether weights' gradients are to lie in buckets.

    Raises:
        RegionConflict: If tensors that share a region do not agree.
    """
    values = list(graph.traced.values)
    updates = _place_sources(graph, values, table)
    outputs = _place_outputs(graph, values, table)
    saved = {v for need in boundary.needs for v in need.saves}
    _place_activations(sorted(saved.union(boundary.values)), values, table)
    last = _last_writers(graph, values, boundary.needs)
    sources = [s.value for s in _in_order_of_gradients(graph, values, last, bucketed=bucketed)]
    for v in (v for v in sources if graph.grads[v]):
        name = f"{table.regions[values[v].region].name}__grad"
        region = table.add(name, values[v].shape, values[v].dtype, Role.GRADIENT, share=True)
        values[v] = replace(values[v], grad_region=region)
    for v in (v for v in boundary.values if graph.grads[v]):
        name = f"{values[v].name}__cotangent"
        region = table.add(name, values[v].shape, values[v].dtype, Role.COTANGENT)
        values[v] = replace(values[v], grad_region=region)
    _name_tensors(graph, values, outputs, table)
    return PlacedGraph(
        graph=graph,
        values=tuple(
            replace(value, needs_grad=True) if grad else value
            for value, grad in zip(values, graph.grads, strict=True)
        ),
        outputs=outputs,
        updates=updates,
        boundary=boundary,
        last_writers=last,
    )


def _place_sources(
    graph: SectionedGraph, values: list[Value], table: RegionTable
) -> tuple[Update, ...]:
    """Inputs, weights, buffers, constants, argins and seeds, role by role; returns the updates."""
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
    return tuple(updates)


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


def _place_outputs(
    graph: SectionedGraph, values: Sequence[Value], table: RegionTable
) -> tuple[Output, ...]:
    """Results and their gradients."""
    outputs = []
    for i, traced in enumerate(graph.traced.outputs):
        value = values[traced.value]
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
            grad = OutputGrad.ONES if i in graph.losses else OutputGrad.NONE
            grad_region = table.add(f"{name}__grad", value.shape, value.dtype, Role.OUTPUT_GRADIENT)
        outputs.append(
            Output(name=name, value=traced.value, region=region, grad_region=grad_region, grad=grad)
        )
    return tuple(outputs)


def _place_activations(indices: Sequence[int], values: list[Value], table: RegionTable) -> None:
    """What later sections or the backward pass take from a section."""
    names = {r.name for r in table.regions}
    for v in indices:
        value = values[v]
        if value.region < 0:
            name = f"{value.name}__saved" if value.name in names else value.name
            region = table.add(name, value.shape, value.dtype, Role.ACTIVATION)
            values[v] = replace(value, region=region)


def _last_writers(
    graph: SectionedGraph, values: Sequence[Value], needs: Sequence[BackwardNeeds]
) -> dict[int, int]:
    """For each region of a source with a gradient, the section that writes that gradient last.

    Backward sections run in reverse, so that is the first section that uses the source.
    """
    last: dict[int, int] = {}
    for section in reversed(range(len(graph.sections))):
        for i in needs[section].nodes:
            for v in graph.traced.nodes[i].refs():
                if v in graph.source_of and graph.grads[v]:
                    last[values[v].region] = section
    return last


def _in_order_of_gradients(
    graph: SectionedGraph, values: Sequence[Value], last: Mapping[int, int], *, bucketed: bool
) -> list[Source]:
    """Sources in the order in which their gradients get regions."""
    ordered = list(graph.traced.sources)
    if bucketed:
        # In the order in which the backward pass finishes them: a bucket's gradients are
        # neighbours then, and region numbers tell their order in it.
        ordered.reverse()
        ordered.sort(
            key=lambda s: (s.role is not Role.WEIGHT, -last.get(values[s.value].region, 0))
        )
    return ordered


def _name_tensors(
    graph: SectionedGraph, values: Sequence[Value], outputs: Sequence[Output], table: RegionTable
) -> None:
    """Let users find sources and results by name; names of earlier graphs stay theirs."""
    for source in graph.traced.sources:
        if source.role in (Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT):
            value = values[source.value]
            table.name_tensor(source.name, value.region, value.grad_region)
    for output in outputs:
        table.name_tensor(output.name, output.region, output.grad_region)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The contents of a tensor, row-major, little-endian."""
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
