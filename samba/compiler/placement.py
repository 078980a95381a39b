"""Which tensors of a graph outlive a section, and the region that each of them gets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from pef_schema.program import (
    Argin,
    ArginKind,
    Output,
    OutputGrad,
    Role,
    Section,
    Update,
    Value,
)
from samba.compiler.buckets import FIRST_BUCKET_BYTES, Gradient, GradientBucket, plan_buckets
from samba.compiler.regions import RegionTable
from samba.compiler.saved import BackwardNeeds
from samba.tracer.traced import Source, Traced


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the graphs of a program have in common."""

    state: frozenset[str]
    table: RegionTable = field(default_factory=RegionTable)
    argins: list[Argin] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    named: set[str] = field(default_factory=set)


class Placement:
    """The regions of one graph's values.

    Sections are made of it once all of ``place_…`` have run.

    Args:
        traced: The graph.
        shared: What it adds to.
        cuts: Its nodes, divided into sections.
        grads: For each value, whether a gradient flows through it.
    """

    def __init__(
        self, traced: Traced, shared: Shared, cuts: list[range], grads: list[bool]
    ) -> None:
        self.traced, self.shared = traced, shared
        self.table, self.argins = shared.table, shared.argins
        self.values: list[Value] = list(traced.values)
        self.source_of = {s.value: s for s in traced.sources}
        self.cuts, self.grads = cuts, grads
        self.section_of = {
            v: s for s, cut in enumerate(cuts) for i in cut for v in traced.nodes[i].outputs
        }
        self.written_at = self._state_writers()

    def _set(self, value: int, **changes: object) -> None:
        self.values[value] = replace(self.values[value], **changes)

    def place_sources(self) -> None:
        """Regions of inputs, weights, buffers, constants, argins and seeds, role by role."""
        for role in (Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT, Role.ARGIN, Role.SEED):
            for source in self.traced.sources:
                if source.role is role:
                    self._place_source(source)

    def _place_source(self, source: Source) -> None:
        value = self.values[source.value]
        data = None
        if source.role is Role.CONSTANT and source.tensor is not None:
            data = tensor_bytes(source.tensor)
        region = self.table.add(
            source.region_name,
            value.shape,
            value.dtype,
            Role.BUFFER if self._is_state(source) else source.role,
            share=source.role is not Role.CONSTANT,
            data=data,
        )
        self._set(source.value, region=region)
        if source.role in (Role.ARGIN, Role.SEED) and any(a.region == region for a in self.argins):
            return  # another graph of the program has it too
        if source.role is Role.ARGIN:
            self.argins.append(
                Argin(
                    name=source.name,
                    region=region,
                    kind=ArginKind.DROPOUT_RATE,
                    default=source.default,
                )
            )
        elif source.role is Role.SEED:
            self.argins.append(
                Argin(name=source.name, region=region, kind=ArginKind.DROPOUT_SEED, default=0.0)
            )

    def _is_state(self, source: Source) -> bool:
        return source.role is Role.INPUT and source.region_name in self.shared.state

    def place_updates(self) -> tuple[Update, ...]:
        """State that the graph changes, with the region that takes the new value."""
        updates = []
        for new, old in self.traced.updates:
            home = self.values[old].region
            updates.append(Update(value=new, region=home))
            if self.source_of[old].role is Role.SEED:
                # Sections after the first read the advanced seed where it is written.
                self._set(new, region=home)
        return tuple(updates)

    def _state_writers(self) -> dict[int, int]:
        """The section that writes each output whose region is an input's.

        That is the last one that reads the input, or a later one that makes the output.
        """
        readers: dict[str, int] = {}
        for section, cut in enumerate(self.cuts):
            for i in cut:
                for v in self.traced.nodes[i].refs():
                    if v in self.source_of and self._is_state(self.source_of[v]):
                        readers[self.source_of[v].region_name] = section
        return {
            i: max(self.section_of.get(o.value, 0), readers.get(o.region_name, 0))
            for i, o in enumerate(self.traced.outputs)
            if o.region_name in self.shared.state
        }

    def boundary(self) -> list[int]:
        """Values that a later section takes from an earlier one, in order."""
        found: dict[int, None] = {}
        for section, cut in enumerate(self.cuts):
            for i in cut:
                for v in self.traced.nodes[i].refs():
                    if self.section_of.get(v, section) != section and self.values[v].region < 0:
                        found[v] = None
        for output, section in self.written_at.items():
            v = self.traced.outputs[output].value
            if self.section_of.get(v, section) != section and self.values[v].region < 0:
                found[v] = None
        return sorted(found)

    def place_outputs(self, losses: frozenset[int]) -> tuple[Output, ...]:
        """Regions of results and of their gradients; those of ``losses`` start as ones."""
        outputs = []
        for i, traced in enumerate(self.traced.outputs):
            value = self.values[traced.value]
            name, place = traced.name, traced.region_name
            region = self.table.add(
                place or name,
                value.shape,
                value.dtype,
                Role.BUFFER if place in self.shared.state else Role.OUTPUT,
                share=bool(place),
            )
            grad, grad_region = OutputGrad.ABSENT, -1
            if self.grads[traced.value] and traced.value not in self.source_of:
                grad = OutputGrad.ONES if i in losses else OutputGrad.NONE
                grad_region = self.table.add(
                    f"{name}__grad", value.shape, value.dtype, Role.OUTPUT_GRADIENT
                )
            outputs.append(
                Output(
                    name=name, value=traced.value, region=region, grad_region=grad_region, grad=grad
                )
            )
        return tuple(outputs)

    def place_activations(self, boundary: list[int], needs: list[BackwardNeeds]) -> None:
        """Regions of what later sections or the backward pass take from a section."""
        saved = {v for need in needs for v in need.saves}
        taken = {r.name for r in self.table.regions}
        for v in sorted(saved | set(boundary)):
            value = self.values[v]
            if value.region < 0:
                name = f"{value.name}__saved" if value.name in taken else value.name
                region = self.table.add(name, value.shape, value.dtype, Role.ACTIVATION)
                self._set(v, region=region)

    def last_writers(self, needs: list[BackwardNeeds]) -> dict[int, int]:
        """For each region of a source with a gradient, the section that writes it last.

        Backward sections run in reverse, so that is the first section that uses the source.
        """
        last: dict[int, int] = {}
        for section in reversed(range(len(needs))):
            for i in needs[section].nodes:
                for v in self.traced.nodes[i].refs():
                    if v in self.source_of and self.grads[v]:
                        last[self.values[v].region] = section
        return last

    def buckets(self, last: dict[int, int], limit: int) -> tuple[GradientBucket, ...]:
        """The weights' gradients in buckets of at most ``limit`` bytes."""
        homes = {
            self.values[s.value].grad_region: self.values[s.value].region
            for s in self.traced.sources
            if s.role is Role.WEIGHT and self.values[s.value].grad_region >= 0
        }
        return plan_buckets(
            [
                Gradient(
                    region=grad,
                    nbytes=self.table.regions[grad].nbytes,
                    dtype=self.table.regions[grad].dtype,
                    section=last[homes[grad]],
                )
                for grad in sorted(homes)
            ],
            limit=limit,
            first=min(limit, FIRST_BUCKET_BYTES),
        )

    def place_gradients(self, boundary: list[int], last: dict[int, int], *, bucketed: bool) -> None:
        """Regions of the gradients of sources and of values at a section boundary."""
        sources = list(self.traced.sources)
        if bucketed:
            # In the order in which the backward pass finishes them: a bucket's gradients are
            # neighbours then, and region numbers tell their order in it.
            sources.reverse()
            sources.sort(
                key=lambda s: (s.role is not Role.WEIGHT, -last.get(self.values[s.value].region, 0))
            )
        for source in sources:
            v = source.value
            if not self.grads[v]:
                continue
            value = self.values[v]
            home = self.table.regions[value.region]
            region = self.table.add(
                f"{home.name}__grad", value.shape, value.dtype, Role.GRADIENT, share=True
            )
            self._set(v, grad_region=region)
        for v in boundary:
            if self.grads[v]:
                value = self.values[v]
                region = self.table.add(
                    f"{value.name}__cotangent", value.shape, value.dtype, Role.COTANGENT
                )
                self._set(v, grad_region=region)
        for v, grad in enumerate(self.grads):
            if grad:
                self._set(v, needs_grad=True)

    def weight_gradients(self) -> set[int]:
        """The regions of the weights' gradients."""
        return {
            self.values[s.value].grad_region
            for s in self.traced.sources
            if s.role is Role.WEIGHT and self.values[s.value].grad_region >= 0
        }

    def name_tensors(self, outputs: tuple[Output, ...]) -> None:
        """Let users find sources and results by name; run last, when gradients have regions."""
        for source in self.traced.sources:
            if source.role in (Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT):
                if source.name in self.shared.named:
                    continue  # another graph of the program has it too
                self.shared.named.add(source.name)
                value = self.values[source.value]
                self.table.name_tensor(source.name, value.region, value.grad_region)
        for output in outputs:
            if output.name not in self.shared.named:
                self.shared.named.add(output.name)
                self.table.name_tensor(output.name, output.region, output.grad_region)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The contents of a tensor, row-major, little-endian."""
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
