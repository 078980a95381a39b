"""Structures of sections: what they compute, apart from where their data lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from pef_schema.program import Arg, Node, OptimizerParam, Program, Ref, Section, SectionKind, Step
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
        # 1, 1.0 and True are equal but not the same argument.
        return arg if type(arg) is int else (type(arg), arg)

    def numbers(self, regions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted([self.region(r) for r in regions])) if regions else ()


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
        self._owners = {
            p.weight: (i, p) for i, o in enumerate(program.optimizers) for p in o.params
        }
        self._costs: dict[tuple[int, int], int] = {}

    def of(self, section: Section) -> Structure:
        """The structure of a section."""
        numbering = _Numbering(self._program)
        parts = tuple(self._parts(section, numbering))
        return Structure(key=(parts, tuple(numbering.facts)), regions=tuple(numbering.regions))

    def same(self, one: Section, two: Section) -> bool:
        """Whether two sections have one structure; neither structure is kept as a whole."""
        ours, theirs = _Numbering(self._program), _Numbering(self._program)
        pairs = zip_longest(self._parts(one, ours), self._parts(two, theirs))
        return all(a == b for a, b in pairs) and ours.facts == theirs.facts

    def cost(self, section: Section) -> int:
        """How many things the structure of a section mentions."""
        total = 0
        for step in section.steps:
            total += 1 + len(step.reads) + len(step.writes) + len(step.accumulates)
            g = step.graph
            if g >= 0:
                total += sum([self._cost_of_node(g, i) for i in step.nodes])
                total += sum([self._cost_of_node(g, i) for i in step.recompute])
                for ends in (self._outputs[g], self._updates[g]):
                    total += sum([len(ends.get(r, ())) for r in step.reads])
                    total += sum([len(ends.get(r, ())) for r in step.writes])
            for index in step.optimizers:
                optimizer = self._program.optimizers[index]
                total += 1 + len(optimizer.options) + len(optimizer.argins)
                if step.kind is not SectionKind.OPT:
                    total += sum([2 + len(p.states) for p in optimizer.params])
            if step.optimizers and step.kind is SectionKind.OPT:
                owned = [self._owners[r][1] for r in step.writes if r in self._owners]
                total += sum([2 + len(p.states) for p in owned])
        return total

    def _cost_of_node(self, g: int, index: int) -> int:
        known = self._costs.get((g, index))
        if known is None:
            graph = self._program.graphs[g]
            node = graph.nodes[index]
            known = _arguments(node)
            gradient = graph.gradient_of(node)
            if gradient is not None:
                # Two of them are compared part by part.
                known += len(gradient.values) + sum([_arguments(n) for n in gradient.nodes])
            self._costs[g, index] = known
        return known

    def _parts(self, section: Section, numbering: _Numbering) -> Iterator[Key]:
        """Yield what a section consists of, piece by piece."""
        for step in section.steps:
            yield (
                step.kind,
                step.max_norm,
                len(step.recompute),
                len(step.nodes),
                len(step.optimizers),
            )
            if step.graph >= 0:
                yield from self._nodes(step, numbering)
                yield from self._ends(step, numbering)
            yield from self._optimizers(step, numbering)
            yield numbering.numbers(step.reads)
            yield numbering.numbers(step.writes)
            yield numbering.numbers(step.accumulates)

    def _nodes(self, step: Step, numbering: _Numbering) -> Iterator[Key]:
        g = step.graph
        graph = self._program.graphs[g]
        for i in chain(step.recompute, step.nodes):
            node = graph.nodes[i]
            # The index of a gradient says nothing outside of its graph.
            gradient = graph.gradient_of(node)
            plain = node.args if gradient is None else node.args[1:]
            args = (gradient, *[numbering.arg(g, arg) for arg in plain])
            kwargs = tuple([(name, numbering.arg(g, arg)) for name, arg in node.kwargs])
            yield node.op, args, kwargs, tuple([numbering.value(g, v) for v in node.outputs])

    def _ends(self, step: Step, numbering: _Numbering) -> Iterator[Key]:
        g = step.graph
        graph, touched = self._program.graphs[g], {*step.reads, *step.writes}
        outputs = {i for r in touched for i in self._outputs[g].get(r, ())}
        updates = {i for r in touched for i in self._updates[g].get(r, ())}
        yield len(outputs), len(updates)
        for output in (graph.outputs[i] for i in sorted(outputs)):
            homes = numbering.region(output.region), numbering.region(output.grad_region)
            yield numbering.value(g, output.value), homes, output.grad
        for update in (graph.updates[i] for i in sorted(updates)):
            yield numbering.value(g, update.value), numbering.region(update.region)

    def _optimizers(self, step: Step, numbering: _Numbering) -> Iterator[Key]:
        owned: dict[int, list[OptimizerParam]] = {}
        if step.optimizers and step.kind is SectionKind.OPT:
            for owner, param in [self._owners[r] for r in step.writes if r in self._owners]:
                owned.setdefault(owner, []).append(param)
        for index in step.optimizers:
            optimizer = self._program.optimizers[index]
            opt = step.kind is SectionKind.OPT
            params = owned.get(index, ()) if opt else optimizer.params
            yield (
                optimizer.kind,
                optimizer.options,
                tuple([_param(p, numbering) for p in params]),
                tuple([(name, numbering.region(region)) for name, region in optimizer.argins]),
                numbering.region(optimizer.step),
            )


def _arguments(node: Node) -> int:
    """The number of results and arguments of a node, those in lists too."""
    total = 1 + len(node.outputs)
    pending = [node.args, tuple([arg for _, arg in node.kwargs])]
    while pending:
        items = pending.pop()
        total += len(items)
        pending += [item for item in items if isinstance(item, tuple)]
    return total


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

    Raises:
        PefLimit: If sections share so much that comparing them would take long.
    """
    sections = program.sections
    twins = [(i, s) for i, s in enumerate(sections) if s.twin != i]
    if not twins:
        return
    structures = Structures(program)
    costs: dict[int, int] = {}
    for _, section in twins:
        if section.twin not in costs:
            costs[section.twin] = structures.cost(sections[section.twin])
        # Sections may share nodes, regions and optimizers that are large: all of it is counted
        # before any of it is compared.
        report.spend("sections and their twins", structures.cost(section) + costs[section.twin])
    for index, section in twins:
        if not structures.same(section, sections[section.twin]):
            report.add(f"section {index}: its twin {section.twin} has another structure")
