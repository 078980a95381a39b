"""Structures of sections: what they compute, apart from where their data lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pef_schema.program import Arg, OptimizerParam, Program, Ref, Section, SectionKind, Step
from pef_schema.verify_rules import Report

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The structure of a section.

    Args:
        key: Equal for two sections exactly if one computes on its regions what the other computes
            on its own: the same operations on the same shapes, dtypes and roles.
        regions: The section's regions in the order in which the key mentions them; those of two
            sections with equal keys correspond by position.
    """

    key: Key
    regions: tuple[int, ...]


@dataclass(slots=True)
class _Numbering:
    """Numbers values and regions as they come up, so that absolute indices leave no trace."""

    program: Program
    values: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    regions: dict[int, int] = field(default_factory=dict[int, int])
    facts: list[object] = field(default_factory=list[object])

    def region(self, index: int) -> int:
        if index < 0:
            return -1
        known = self.regions.get(index)
        if known is None:
            known = self.regions[index] = len(self.regions)
            region = self.program.regions[index]
            self.facts.append((region.shape, region.dtype, region.role))
        return known

    def value(self, graph: int, index: int) -> int:
        if index < 0:
            return -1
        known = self.values.get((graph, index))
        if known is None:
            known = self.values[graph, index] = len(self.values)
            value = self.program.graphs[graph].values[index]
            homes = self.region(value.region), self.region(value.grad_region)
            self.facts.append((value.shape, value.dtype, value.needs_grad, homes))
        return known

    def arg(self, graph: int, arg: Arg) -> object:
        if isinstance(arg, Ref):
            return Ref, self.value(graph, arg.value)
        if isinstance(arg, tuple):
            return tuple([self.arg(graph, item) for item in arg])
        return type(arg), arg  # 1, 1.0 and True are equal but not the same argument

    def numbers(self, regions: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted([self.region(r) for r in regions]))


class Structures:
    """Describes sections of one program by what they compute.

    Args:
        program: A verified program.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> zero = Section(name="a", steps=(Step(kind=SectionKind.ZEROGRAD),), twin=0)
        >>> again = Section(name="b", steps=(Step(kind=SectionKind.ZEROGRAD),), twin=0)
        >>> structures = Structures(nothing)
        >>> structures.of(zero) == structures.of(again)
        True
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # Looked up by region, so that a section costs no more than its own size.
        self._outputs: list[dict[int, list[int]]] = []
        self._updates: list[dict[int, list[int]]] = []
        for graph in program.graphs:
            outputs: dict[int, list[int]] = {}
            for i, output in enumerate(graph.outputs):
                for region in {output.region, output.grad_region}:
                    outputs.setdefault(region, []).append(i)
            updates: dict[int, list[int]] = {}
            for i, update in enumerate(graph.updates):
                updates.setdefault(update.region, []).append(i)
            self._outputs.append(outputs)
            self._updates.append(updates)
        self._params = [{p.weight: p for p in o.params} for o in program.optimizers]

    def of(self, section: Section) -> Structure:
        """The structure of a section."""
        numbering = _Numbering(self._program)
        steps = tuple([self._step(step, numbering) for step in section.steps])
        return Structure(key=(steps, tuple(numbering.facts)), regions=tuple(numbering.regions))

    def _step(self, step: Step, numbering: _Numbering) -> Key:
        nodes = self._nodes(step, numbering) if step.graph >= 0 else ()
        ends = self._ends(step, numbering) if step.graph >= 0 else ()
        optimizers = tuple([self._optimizer(i, step, numbering) for i in step.optimizers])
        return (
            step.kind,
            step.max_norm,
            len(step.recompute),
            nodes,
            ends,
            optimizers,
            numbering.numbers(step.reads),
            numbering.numbers(step.writes),
            numbering.numbers(step.accumulates),
        )

    def _nodes(self, step: Step, numbering: _Numbering) -> Key:
        g = step.graph
        found: list[Key] = []
        for i in (*step.recompute, *step.nodes):
            node = self._program.graphs[g].nodes[i]
            # The index of a gradient says nothing outside of its graph.
            gradient = self._program.graphs[g].gradient_of(node)
            plain = node.args if gradient is None else node.args[1:]
            args = (gradient, *[numbering.arg(g, arg) for arg in plain])
            kwargs = tuple([(name, numbering.arg(g, arg)) for name, arg in node.kwargs])
            found.append(
                (node.op, args, kwargs, tuple([numbering.value(g, v) for v in node.outputs]))
            )
        return tuple(found)

    def _ends(self, step: Step, numbering: _Numbering) -> Key:
        g = step.graph
        graph, touched = self._program.graphs[g], {*step.reads, *step.writes}
        outputs = {i for r in touched for i in self._outputs[g].get(r, ())}
        updates = {i for r in touched for i in self._updates[g].get(r, ())}
        found: list[object] = []
        for output in (graph.outputs[i] for i in sorted(outputs)):
            homes = numbering.region(output.region), numbering.region(output.grad_region)
            found.append((numbering.value(g, output.value), homes, output.grad))
        for update in (graph.updates[i] for i in sorted(updates)):
            found.append((numbering.value(g, update.value), numbering.region(update.region)))
        return tuple(found)

    def _optimizer(self, index: int, step: Step, numbering: _Numbering) -> Key:
        optimizer, known = self._program.optimizers[index], self._params[index]
        if step.kind is SectionKind.OPT:
            params = [known[r] for r in step.writes if r in known]
        else:
            params = list(optimizer.params)
        return (
            optimizer.kind,
            optimizer.options,
            tuple([_param(p, numbering) for p in params]),
            tuple([(name, numbering.region(region)) for name, region in optimizer.argins]),
            numbering.region(optimizer.step),
        )


def _param(param: OptimizerParam, numbering: _Numbering) -> Key:
    states = tuple([numbering.region(s) for s in param.states])
    return numbering.region(param.weight), numbering.region(param.grad), states


def with_twins(program: Program) -> Program:
    """Name for every section the first one of its structure.

    Args:
        program: A program whose sections are complete.

    Returns:
        The same program with ``Section.twin`` set.
    """
    structures = Structures(program)
    first: dict[Key, int] = {}
    sections = tuple(
        replace(section, twin=first.setdefault(structures.of(section).key, index))
        for index, section in enumerate(program.sections)
    )
    return replace(program, sections=sections)


def check_twins(program: Program, report: Report) -> None:
    """Check that sections said to be of one structure are.

    Args:
        program: A program that is valid otherwise.
        report: Where a problem is added.
    """
    structures = Structures(program)
    first: dict[int, Structure] = {}
    for index, section in enumerate(program.sections):
        twin = section.twin
        if twin == index:
            continue
        if twin not in first:
            first[twin] = structures.of(program.sections[twin])
        if structures.of(section).key != first[twin].key:
            report.add(f"section {index}: its twin {twin} has another structure")
