"""The contract between a program and the device, checked when a device is opened."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.contract.arguments import ArgumentCheck
from emulator.contract.backward import backward_problems
from emulator.contract.settings import setting_problems
from emulator.errors import CannotRun, Problem
from pef_schema.program import Gradient, Graph, Program, SectionKind


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
        problems += [Problem(where=where, reason=r) for r in setting_problems(optimizer)]
    if not problems:  # facts of ops that do not exist are none
        problems += _backward_problems(program)
    if problems:
        raise CannotRun(program=program.name, problems=problems)


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
            for index, reason in backward_problems(program, step):
                if index < 0:
                    yield Problem(where=where, reason=reason)
                    continue
                node = program.graphs[step.graph].nodes[index]
                yield Problem.of(node, where=f"{where} node {index}", reason=reason, index=index)
