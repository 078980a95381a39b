"""Backward steps against their ops: what gradients read is in memory or computed again."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.op_facts.facts import gradient_reads
from emulator.op_facts.table import op_facts
from pef_schema.program import Program, Step


def backward_problems(program: Program, step: Step) -> Iterator[tuple[int, str]]:
    """What a BCKWD step lacks.

    Args:
        program: A verified program whose ops the device has.
        step: The step.

    Returns:
        Nodes with reasons why the device cannot differentiate them; -1 for the step itself.
    """
    graph, facts, reads = program.graphs[step.graph], op_facts(), {*step.reads}
    again = {v for i in step.recompute for v in graph.nodes[i].outputs}

    def is_at_hand(value: int) -> bool:
        return value in again or graph.values[value].region in reads

    for i in step.recompute:
        node = graph.nodes[i]
        absent = {v for v in node.refs() if not is_at_hand(v)}
        if absent:
            yield i, f"it is computed again from {_names(program, step, absent)}, not among reads"
    for i in step.nodes:
        node = graph.nodes[i]
        needed = gradient_reads(node, facts[node.op], lambda v: graph.values[v].needs_grad)
        absent = {v for v in needed if not is_at_hand(v)}
        if absent:
            yield i, f"its gradient reads {_names(program, step, absent)}, not among reads"
    if not {*step.accumulates} <= reads:
        count = len({*step.accumulates} - reads)
        yield -1, f"it adds to {count} gradient(s) that it does not read"


def _names(program: Program, step: Step, values: set[int]) -> str:
    names = [program.graphs[step.graph].values[v].name for v in sorted(values)[:8]]
    return ", ".join(names) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
