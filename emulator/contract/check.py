"""The contract between a program and the device, checked when a device is opened."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.contract.arguments import ArgumentCheck
from emulator.errors import CannotRun, Problem
from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.table import op_facts
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.printable import some_of
from pef_schema.program import Gradient, Graph, Optimizer, Program, SectionKind, Step


def check_contract(program: Program) -> None:
    """Check that the device knows how to run each part of a program.

    It takes time in proportion to the program and allocates nothing on the device. What this check
    cannot tell (shapes that do not fit, say) is found when a section is lowered.

    Args:
        program: A program that :func:`pef_schema.verify.verify` has passed.

    Raises:
        CannotRun: If some parts cannot run; the error lists all of them.

    Example:
        >>> from dataclasses import replace
        >>> from pef_schema.program import Node, Program
        >>> graph = Graph(
        ...     name="net", values=(), inputs=(), outputs=(),
        ...     nodes=(Node(op="aten.nothing.default", args=(), outputs=(-1,), module="net"),),
        ... )
        >>> program = Program(
        ...     name="net", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(graph,), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> try:
        ...     check_contract(program)
        ... except CannotRun as error:
        ...     print(error.problems[0].reason)
        the device has no operation of that name
    """
    problems = [p for graph in program.graphs for p in _graph_problems(graph)]
    for index, optimizer in enumerate(program.optimizers):
        where = f"optimizer {index} ({optimizer.name})"
        problems += [Problem(where=where, reason=r) for r in _setting_problems(optimizer)]
    if not problems:  # facts of ops that do not exist are none
        problems += _backward_problems(program)
    if problems:
        raise CannotRun(program=program.name, problems=problems)


def _setting_problems(optimizer: Optimizer) -> Iterator[str]:
    """The settings that an optimizer's update rule reads and the optimizer lacks."""
    rule = OPTIMIZER_RULES[optimizer.kind]
    for what, names, present in (
        ("option", rule.options, optimizer.options),
        ("argin", rule.argins, optimizer.argins),
    ):
        absent = [name for name in names if name not in dict(present)]
        if absent:
            yield f"no {what} {', '.join(absent)}, which {optimizer.kind.name} reads"


def _graph_problems(graph: Graph) -> Iterator[Problem]:
    check = ArgumentCheck()
    yield from _node_problems(graph, f"graph {graph.name}", check)
    for gradient in graph.gradients:
        yield from _node_problems(gradient, f"gradient {gradient.name}", check)


def _node_problems(graph: Graph | Gradient, where: str, check: ArgumentCheck) -> Iterator[Problem]:
    for index, node in enumerate(graph.nodes):
        for reason in check.problems(node, graph.values):
            yield Problem.of(node, where=f"{where} node {index}", reason=reason, index=index)


def _backward_problems(program: Program) -> Iterator[Problem]:
    for section in program.sections:
        for step in section.steps:
            if step.kind is not SectionKind.BCKWD:
                continue
            where = f"section {section.name} BCKWD"
            for index, reason in _step_problems(program, step):
                if index < 0:
                    yield Problem(where=where, reason=reason)
                    continue
                node = program.graphs[step.graph].nodes[index]
                yield Problem.of(node, where=f"{where} node {index}", reason=reason, index=index)


def _step_problems(program: Program, step: Step) -> Iterator[tuple[int, str]]:
    """Nodes of a BCKWD step that the device cannot differentiate, with reasons.

    What their gradients read has to be in memory, or computed again. A node of -1 is the step.
    """
    graph, facts, reads = program.graphs[step.graph], op_facts(), {*step.reads}
    again = {v for i in step.recompute for v in graph.nodes[i].outputs}

    def is_at_hand(value: int) -> bool:
        return value in again or graph.values[value].region in reads

    for i in step.recompute:
        node = graph.nodes[i]
        absent = {v for v in node.refs() if not is_at_hand(v)}
        if absent:
            yield i, f"it is recomputed from {_names(program, step, absent)}, which is not read"
    for i in step.nodes:
        node = graph.nodes[i]
        needed = gradient_reads(node, facts[node.op], lambda v: graph.values[v].needs_grad)
        absent = {v for v in needed if not is_at_hand(v)}
        if absent:
            yield i, f"its gradient needs {_names(program, step, absent)}, which is not read"
    if not {*step.accumulates} <= reads:
        count = len({*step.accumulates} - reads)
        yield -1, f"it adds to {count} gradient(s) that it does not read"


def _names(program: Program, step: Step, values: set[int]) -> str:
    known = program.graphs[step.graph].values
    return some_of(sorted(values), 8, lambda v: known[v].name)
