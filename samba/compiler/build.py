"""Build the Program of a traced model: the compiler's main path, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from emulator.ops.registry import load_ops
from pef_schema.errors import SambaError
from pef_schema.program import (
    Argin,
    ArginKind,
    Call,
    Graph,
    Optimizer,
    Output,
    OutputGrad,
    Program,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    Update,
    Value,
)
from pef_schema.structure import with_twins
from samba.compiler.buckets import (
    DEFAULT_BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Gradient,
    GradientBucket,
    plan_buckets,
)
from samba.compiler.flow import gradient_values
from samba.compiler.optimizer import GroupSpec, describe_optimizers
from samba.compiler.regions import RegionTable
from samba.compiler.saved import BackwardNeeds, backward_needs
from samba.compiler.sections import DEFAULT_SECTION_BYTES, cut_sections
from samba.compiler.update import OptimizerRegions, add_optimizers
from samba.tracer.traced import Source, Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Settings of a compile.

    Args:
        name: Name of the program.
        inference: Forward only.
        mapping: ``"section"`` or ``"spatial"``.
        optim_level: Section policy, ``"o0"``, ``"o1"`` or ``"o3"``.
        section_bytes: What an ``o3`` section may touch, in bytes.
        loss_indices: Outputs that are losses; None to find them by shape.
        accumulate: Whether gradients add up until ZEROGRAD runs.
        data_parallel: Whether gradients are reduced between replicas: they lie in buckets then,
            each with a REDUCE section.
        bucket_bytes: What a bucket may hold.
        metadata: Free text stored in the PEF.
    """

    name: str
    inference: bool = False
    mapping: str = "section"
    optim_level: str = "o3"
    section_bytes: int = DEFAULT_SECTION_BYTES
    loss_indices: tuple[int, ...] | None = None
    accumulate: bool = False
    data_parallel: bool = False
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    metadata: tuple[tuple[str, str], ...] = ()


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
        traced: The graph from :func:`samba.tracer.trace_model`.
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
    shared = _Shared(state=_state_regions(graphs))
    parts: list[Graph] = []
    schedules: list[Schedule] = []
    optimizers: tuple[Optimizer, ...] = ()
    calls = 0
    for index, traced in enumerate(graphs):
        prefix = f"{traced.name}__" if len(graphs) > 1 else ""
        graph, sections, optimizers = _Builder(
            traced, groups, options, shared, index, prefix
        ).build()
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


@dataclass(slots=True, kw_only=True)
class _Shared:
    """What the graphs of a program have in common."""

    state: frozenset[str]
    table: RegionTable = field(default_factory=RegionTable)
    argins: list[Argin] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    named: set[str] = field(default_factory=set)


class _Builder:
    """Builds one graph with its sections.

    Args:
        traced: The graph.
        groups: Parameter groups of its optimizers.
        options: Settings.
        shared: What it adds to.
        index: Its number.
        prefix: Put before the names of its sections.
    """

    def __init__(
        self,
        traced: Traced,
        groups: list[GroupSpec],
        options: CompileOptions,
        shared: _Shared,
        index: int,
        prefix: str,
    ) -> None:
        self.traced, self.groups, self.options = traced, groups, options
        self.shared, self.index, self.prefix = shared, index, prefix
        self.ops = load_ops()
        self.table, self.argins = shared.table, shared.argins
        self.values: list[Value] = list(traced.values)
        self.trains = not options.inference
        self.source_of = {s.value: s for s in traced.sources}

    def build(self) -> tuple[Graph, list[Section], tuple[Optimizer, ...]]:
        traced, options = self.traced, self.options
        losses = self._losses()
        starts = [o.value for o in traced.outputs if o.value not in self.source_of]
        self.grads = (
            gradient_values(traced, self.ops, starts)
            if self.trains
            else [False] * len(traced.values)
        )
        cuts = cut_sections(
            traced,
            level=options.optim_level,
            mapping=options.mapping,
            budget=options.section_bytes,
            # Sections no larger than buckets, so that a bucket is full before the last of them.
            weight_budget=options.bucket_bytes if options.data_parallel else None,
        )
        self.section_of = {
            v: s for s, cut in enumerate(cuts) for i in cut for v in traced.nodes[i].outputs
        }
        self._place_sources()
        updates = self._place_updates()
        self.written_at = self._state_writers(cuts)
        boundary = self._boundary(cuts)
        stored = (
            frozenset(self.source_of)
            | frozenset(boundary)
            | frozenset(v for v, value in enumerate(self.values) if value.region >= 0)
        )
        needs = [
            backward_needs(
                cut,
                nodes=traced.nodes,
                values=self.values,
                ops=self.ops,
                grads=self.grads,
                stored=stored,
            )
            for cut in cuts
        ]
        outputs = self._place_outputs(losses)
        self._place_activations(boundary, needs)
        last = self._last_writers(needs)
        self._place_gradients(boundary, last)
        buckets = self._buckets(last) if options.data_parallel else ()
        optimizers = add_optimizers(
            self.groups,
            traced,
            self.values,
            self.table,
            self.argins,
            inference=options.inference,
            buckets=[b.regions for b in buckets],
        )
        sections = self._sections(cuts, needs, outputs, updates, buckets, optimizers)
        self._name_tensors(outputs)
        graph = Graph(
            name=traced.name,
            values=tuple(self.values),
            nodes=traced.nodes,
            inputs=traced.inputs,
            outputs=outputs,
            updates=updates,
        )
        return graph, sections, optimizers.optimizers

    # -- values and regions -------------------------------------------------

    def _losses(self) -> frozenset[int]:
        """Outputs seeded with ones: those given, else all scalars, else the first float one."""
        outputs = self.traced.outputs
        given = self.options.loss_indices
        if given is not None:
            if any(i < 0 or i >= len(outputs) for i in given):
                raise BadLossIndex(found=given, outputs=len(outputs))
            return frozenset(given)
        floats = [i for i, o in enumerate(outputs) if self.values[o.value].dtype.is_floating]
        scalars = [i for i in floats if self.values[outputs[i].value].shape == ()]
        return frozenset(scalars or floats[:1])

    def _set(self, value: int, **changes: object) -> None:
        self.values[value] = replace(self.values[value], **changes)  # type: ignore[arg-type]  # names are Value's

    def _place_sources(self) -> None:
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

    def _state_writers(self, cuts: list[range]) -> dict[int, int]:
        """The section that writes each output whose region is an input's.

        That is the last one that reads the input, or a later one that makes the output.
        """
        readers: dict[str, int] = {}
        for section, cut in enumerate(cuts):
            for i in cut:
                for v in self.traced.nodes[i].refs():
                    if v in self.source_of and self._is_state(self.source_of[v]):
                        readers[self.source_of[v].region_name] = section
        return {
            i: max(self.section_of.get(o.value, 0), readers.get(o.region_name, 0))
            for i, o in enumerate(self.traced.outputs)
            if o.region_name in self.shared.state
        }

    def _place_updates(self) -> tuple[Update, ...]:
        updates = []
        for new, old in self.traced.updates:
            home = self.values[old].region
            updates.append(Update(value=new, region=home))
            if self.source_of[old].role is Role.SEED:
                # Sections after the first read the advanced seed where it is written.
                self._set(new, region=home)
        return tuple(updates)

    def _boundary(self, cuts: list[range]) -> list[int]:
        """Values that a later section takes from an earlier one, in order."""
        found: dict[int, None] = {}
        for section, cut in enumerate(cuts):
            for i in cut:
                for v in self.traced.nodes[i].refs():
                    if self.section_of.get(v, section) != section and self.values[v].region < 0:
                        found[v] = None
        for output, section in self.written_at.items():
            v = self.traced.outputs[output].value
            if self.section_of.get(v, section) != section and self.values[v].region < 0:
                found[v] = None
        return sorted(found)

    def _place_activations(self, boundary: list[int], needs: list[BackwardNeeds]) -> None:
        saved = {v for need in needs for v in need.saves}
        taken = {r.name for r in self.table.regions}
        for v in sorted(saved | set(boundary)):
            value = self.values[v]
            if value.region < 0:
                name = f"{value.name}__saved" if value.name in taken else value.name
                region = self.table.add(name, value.shape, value.dtype, Role.ACTIVATION)
                self._set(v, region=region)

    def _place_outputs(self, losses: frozenset[int]) -> tuple[Output, ...]:
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

    def _last_writers(self, needs: list[BackwardNeeds]) -> dict[int, int]:
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

    def _buckets(self, last: dict[int, int]) -> tuple[GradientBucket, ...]:
        homes = {
            self.values[s.value].grad_region: self.values[s.value].region
            for s in self.traced.sources
            if s.role is Role.WEIGHT and self.values[s.value].grad_region >= 0
        }
        limit = self.options.bucket_bytes
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

    def _place_gradients(self, boundary: list[int], last: dict[int, int]) -> None:
        sources = list(self.traced.sources)
        if self.options.data_parallel:
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

    def _name_tensors(self, outputs: tuple[Output, ...]) -> None:
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

    # -- sections -----------------------------------------------------------

    def _sections(
        self,
        cuts: list[range],
        needs: list[BackwardNeeds],
        outputs: tuple[Output, ...],
        updates: tuple[Update, ...],
        buckets: tuple[GradientBucket, ...],
        optimizers: OptimizerRegions,
    ) -> list[Section]:
        steps: list[tuple[str, tuple[Step, ...]]] = []
        if self.options.accumulate and self._weight_gradients():
            grads = tuple(sorted(self._weight_gradients()))
            steps.append(("zerograd", (Step(kind=SectionKind.ZEROGRAD, writes=grads),)))
        forward = [self._forward(s, cut, outputs, updates) for s, cut in enumerate(cuts)]
        backward = self._backwards(cuts, needs, outputs) if any(self.grads) else {}
        reduces = {s: [n for n, b in enumerate(buckets) if b.section == s] for s in backward}
        if self.options.mapping == "spatial" and backward:
            steps.append(("fwd_bckwd_0", (forward[0], backward[0])))
            steps += [_reduce(n, buckets[n]) for n in reduces[0]]
        else:
            steps += [(f"fwd_{s}", (step,)) for s, step in enumerate(forward)]
            for s, step in backward.items():
                steps.append((f"bckwd_{s}", (step,)))
                steps += [_reduce(n, buckets[n]) for n in reduces[s]]
        steps += optimizers.steps
        # Sections are laid out in the order in which a full run calls them.
        return [
            Section(name=f"{self.prefix}{name}", steps=section, twin=i)
            for i, (name, section) in enumerate(steps)
        ]

    def _weight_gradients(self) -> set[int]:
        return {
            self.values[s.value].grad_region
            for s in self.traced.sources
            if s.role is Role.WEIGHT and self.values[s.value].grad_region >= 0
        }

    def _forward(
        self, section: int, cut: range, outputs: tuple[Output, ...], updates: tuple[Update, ...]
    ) -> Step:
        produced = {v for i in cut for v in self.traced.nodes[i].outputs}
        reads = {
            self.values[v].region
            for i in cut
            for v in self.traced.nodes[i].refs()
            if v not in produced
        }
        writes = {self.values[v].region for v in produced if v >= 0 and self.values[v].region >= 0}
        for i, output in enumerate(outputs):
            home = self.section_of.get(output.value, 0)
            if section == self.written_at.get(i, home):
                writes.add(output.region)
                if output.value not in produced:
                    reads.add(self.values[output.value].region)
        for update in updates:
            if update.value in produced or (section == 0 and update.value in self.source_of):
                writes.add(update.region)
                if update.value in self.source_of:
                    reads.add(self.values[update.value].region)
        return Step(
            kind=SectionKind.FWD,
            graph=self.index,
            nodes=tuple(cut),
            reads=tuple(sorted(reads)),
            writes=tuple(sorted(writes)),
        )

    def _backwards(
        self, cuts: list[range], needs: list[BackwardNeeds], outputs: tuple[Output, ...]
    ) -> dict[int, Step]:
        """The mirror of every forward section, last first; a region's first writer replaces it."""
        persistent = self._weight_gradients() if self.options.accumulate else set[int]()
        written: set[int] = set(persistent)
        steps: dict[int, Step] = {}
        for section in reversed(range(len(cuts))):
            need = needs[section]
            if not need.nodes:
                continue
            produced = {v for i in cuts[section] for v in self.traced.nodes[i].outputs}
            reads = {self.values[v].region for v in need.reads}
            for v in produced:
                if v >= 0 and self.values[v].grad_region >= 0:
                    reads.add(self.values[v].grad_region)
            reads |= {o.grad_region for o in outputs if o.value in produced and o.grad_region >= 0}
            writes = {
                self.values[v].grad_region
                for i in need.nodes
                for v in self.traced.nodes[i].refs()
                if v not in produced and self.grads[v]
            }
            accumulates = writes & written
            written |= writes
            steps[section] = Step(
                kind=SectionKind.BCKWD,
                graph=self.index,
                nodes=need.nodes,
                recompute=need.recompute,
                reads=tuple(sorted(reads | accumulates)),
                writes=tuple(sorted(writes)),
                accumulates=tuple(sorted(accumulates)),
            )
        return steps


def _reduce(number: int, bucket: GradientBucket) -> tuple[str, tuple[Step, ...]]:
    step = Step(kind=SectionKind.REDUCE, reads=bucket.regions, writes=bucket.regions)
    return f"reduce_{number}", (step,)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The contents of a tensor, row-major, little-endian."""
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
