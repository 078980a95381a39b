"""What follows from a program: facts of its sections, lives of its regions, complex numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pef_schema.program import (
    Arg,
    DType,
    Gradient,
    Graph,
    Node,
    OptimizerParam,
    Program,
    Ref,
    Schedule,
    Section,
    SectionKind,
    Step,
    Value,
)

ByRegion = Mapping[int, tuple[str, ...]]
"""Texts by region."""

_JOINT = "__"
"""What stands between the parts of a module path."""


def section_types(section: Section) -> str:
    """Types of a section as users write them, e.g. ``FWD`` or ``FWD+BCKWD``."""
    return "+".join(kind.name for kind in section.kinds)


def section_ops(program: Program, section: Section) -> int:
    """The number of operations that a section runs: nodes, or updated parameters."""
    total = 0
    for step in section.steps:
        total += len(step.nodes) + len(step.recompute)
        total += sum(len(_params_of(program, step, i)) for i in step.optimizers)
    return total


def section_bytes(program: Program, section: Section) -> int:
    """Device memory that a section reads or writes, each region once and whole.

    That is how much lies there for it. What has to move is another figure: the bytes of its cost in
    ``emulator.costs.steps``, which count a region for each direction, and of rows that are chosen
    only these.
    """
    regions = {r for step in section.steps for r in (*step.reads, *step.writes)}
    return sum(program.regions[r].nbytes for r in regions)


def plain_name(op: str) -> str:
    """What an operation is called without its library and its overload.

    Example:
        >>> plain_name("aten.add.Tensor"), plain_name("add")
        ('add', 'add')
    """
    return (op.split(".") * 2)[1]


def operations_of(program: Program, section: Section) -> tuple[tuple[str, int], ...]:
    """Operations of a section and how often each occurs, in the order of their first use.

    Args:
        program: The program.
        section: One of its sections.

    Returns:
        Plain names of the nodes that it runs or differentiates; the update rule of an optimizer
        counts once for each parameter, ``gradient`` for each one that is reduced.
    """
    counts: Counter[str] = Counter()
    for step in section.steps:
        for i in step.nodes:
            counts[plain_name(program.graphs[step.graph].nodes[i].op)] += 1
        for i in step.optimizers:
            counts[program.optimizers[i].kind.name.lower()] += len(_params_of(program, step, i))
        if step.kind is SectionKind.REDUCE:
            counts["gradient"] += len(step.writes)
    return tuple(counts.items())


def operations_text(operations: Iterable[tuple[str, int]]) -> str:
    """Operations with their counts as a cell of a table.

    Example:
        >>> operations_text([("linear", 2), ("relu", 1)])
        'linear:2 relu'
    """
    return " ".join(f"{op}:{count}" if count > 1 else op for op, count in operations)


def owners(program: Program) -> ByRegion:
    """Module paths by region: those of the tensors that lie there, and whose gradients do."""
    by_region: dict[int, dict[str, None]] = {}
    for symbol in program.symbols:
        module = symbol.name.rpartition(_JOINT)[0]
        for region in (symbol.region, symbol.grad_region):
            if module and region >= 0:
                by_region.setdefault(region, {})[module] = None
    return {region: tuple(modules) for region, modules in by_region.items()}


def modules_of(program: Program, section: Section, owned: ByRegion) -> tuple[str, ...]:
    """Module paths of a section, none of them twice.

    Args:
        program: The program.
        section: One of its sections.
        owned: What :func:`owners` says of the program.

    Returns:
        Of FWD and BCKWD sections the modules of their nodes, in the order of the first of each; of
        all others those that the weights belong to whose gradients or values they write.
    """
    return _of_nodes_or_weights(program, section, lambda node: node.module, owned)


def weight_lines(program: Program) -> ByRegion:
    """Lines of the user's code by region: those that read a tensor there, for its gradient too."""
    readers: dict[int, dict[str, None]] = {}
    for graph in program.graphs:
        for node in graph.nodes:
            for ref in node.refs():
                readers.setdefault(graph.values[ref].region, {})[node.source] = None
    by_region: dict[int, dict[str, None]] = {}
    for symbol in program.symbols:
        lines = readers.get(symbol.region, {})
        for region in (symbol.region, symbol.grad_region):
            if region >= 0:
                by_region.setdefault(region, {}).update(lines)
    return {region: tuple(line for line in lines if line) for region, lines in by_region.items()}


def section_lines(program: Program, section: Section, weights: ByRegion) -> tuple[str, ...]:
    """Lines of the user's code that a section belongs to, as ``file:line``, none of them twice.

    Args:
        program: The program.
        section: One of its sections.
        weights: What :func:`weight_lines` says of the program.

    Returns:
        Of FWD and BCKWD sections the lines of their nodes; of all others, whose own line is none,
        those that read the weights whose gradients or values they write. Those of installed
        packages come last.
    """
    lines = _of_nodes_or_weights(program, section, lambda node: node.source, weights)
    return tuple(sorted(lines, key=is_installed))


def is_installed(path: str) -> bool:
    """Whether a file, or a line of it, is of an installed package and not of the user.

    Args:
        path: The file.

    Example:
        >>> is_installed("/usr/lib/python3/dist-packages/p/net.py:3"), is_installed("net.py:3")
        (True, False)
    """
    return "site-packages" in path or "dist-packages" in path


def _of_nodes_or_weights(
    program: Program,
    section: Section,
    of_node: Callable[[Node], str],
    by_region: ByRegion,
) -> tuple[str, ...]:
    """Texts of the nodes of a section; of steps without nodes, those of the regions it is about."""
    texts: dict[str, None] = {}
    for step in section.steps:
        for i in step.nodes:
            texts[of_node(program.graphs[step.graph].nodes[i])] = None
        if not step.nodes:
            for region in _regions_of_step(program, step):
                texts.update(dict.fromkeys(by_region.get(region, ())))
    texts.pop("", None)
    return tuple(texts)


def _params_of(program: Program, step: Step, optimizer: int) -> list[OptimizerParam]:
    """Parameters of an optimizer that a step works on; OPT steps may share an optimizer."""
    params = program.optimizers[optimizer].params
    if step.kind is SectionKind.OPT:
        written = set(step.writes)
        return [p for p in params if p.weight in written]
    return list(params)


def _regions_of_step(program: Program, step: Step) -> Iterator[int]:
    """Weights or gradients that a step without nodes is about."""
    if step.optimizers:
        for i in step.optimizers:
            yield from (p.weight for p in _params_of(program, step, i))
    else:
        yield from step.writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The calls of a schedule during which a region holds something.

    Args:
        region: Index into ``Program.regions``.
        first, last: Positions in ``Schedule.calls``, both inclusive.
    """

    region: int
    first: int
    last: int


def lives(program: Program, schedule_index: int) -> tuple[Life, ...]:
    """When each region is alive along a schedule.

    Activations and cotangents live from the first call that touches them to the last; they may be
    dropped after it. All other regions keep what they hold from run to run, also those that only
    another graph uses.

    Args:
        program: The program.
        schedule_index: Index into ``Program.schedules``.

    Returns:
        A life for each region, in the order of the regions; none for an activation or a cotangent
        that the schedule does not touch, and none at all without calls.
    """
    schedule = program.schedules[schedule_index]
    end = len(schedule.calls) - 1
    if end < 0:
        return ()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, touched in enumerate(_transients_of_calls(program, schedule)):
        for region in touched:
            first.setdefault(region, at)
            last[region] = at
    return tuple(
        Life(
            region=i,
            first=first[i] if region.role.is_transient else 0,
            last=last[i] if region.role.is_transient else end,
        )
        for i, region in enumerate(program.regions)
        if i in first or not region.role.is_transient
    )


def _transients_of_calls(program: Program, schedule: Schedule) -> Sequence[frozenset[int]]:
    """Activations and cotangents that each call reads or writes."""
    by_section: dict[int, frozenset[int]] = {}
    by_call: list[frozenset[int]] = []
    for call in schedule.calls:
        touched = by_section.get(call.section)
        if touched is None:
            touched = frozenset(
                region
                for step in program.sections[call.section].steps
                for region in (*step.reads, *step.writes)
                if program.regions[region].role.is_transient
            )
            by_section[call.section] = touched
        by_call.append(touched)
    return by_call


def has_complex(program: Program) -> bool:
    """Whether a tensor or an argument of a program is complex.

    Args:
        program: Any program.
    """
    parts: list[Graph | Gradient] = [*program.graphs]
    parts += [gradient for graph in program.graphs for gradient in graph.gradients]
    return (
        any(region.dtype.is_complex for region in program.regions)
        or any(value.dtype.is_complex for part in parts for value in part.values)
        or any(is_complex_node(node, ()) for part in parts for node in part.nodes)
    )


def is_complex_node(node: Node, values: Sequence[Value]) -> bool:
    """Whether a node takes or gives complex numbers, as tensors, numbers or by a dtype.

    Args:
        node: The node.
        values: Those of its graph; without them tensors do not count.

    Example:
        >>> is_complex_node(Node(op="aten.mul.Scalar", args=(Ref(0), 1j), outputs=(1,)), ())
        True
    """
    if values and any(v >= 0 and values[v].dtype.is_complex for v in node.outputs):
        return True
    args = (*node.args, *[arg for _, arg in node.kwargs])
    return any(_is_complex(arg, values) for arg in args)


def _is_complex(arg: Arg, values: Sequence[Value]) -> bool:
    if isinstance(arg, tuple):
        return any(_is_complex(item, values) for item in arg)
    if isinstance(arg, Ref):
        return bool(values) and values[arg.value].dtype.is_complex
    return isinstance(arg, complex) or (isinstance(arg, DType) and arg.is_complex)
