"""The ``.pef.log`` beside a PEF: sections, schedule and memory for people to read."""

from __future__ import annotations

from collections import Counter

from emulator.op_facts.precision import precisions
from pef_schema.printable import one_line
from pef_schema.program import Program, Role
from pef_schema.section_facts import (
    operations_of,
    operations_text,
    section_bytes,
    section_ops,
    section_types,
)
from samba.compiler.arithmetic import compiled_arithmetic
from samba.compiler.losses import losses_line


def pef_log(program: Program, digest: str = "") -> str:
    """Describe a program: its sections with types, ops, bytes and call ids, losses and memory.

    ``same_as`` is the first section of the same structure, whose compiled code it shares.

    Args:
        program: The program.
        digest: Digest of its PEF (``PefInfo.digest``), by which the two can be told to belong
            together.

    Returns:
        Text that ends with a newline; names are shown as a terminal may show them.
    """
    calls: dict[int, list[int]] = {}
    for schedule in program.schedules:
        for call in schedule.calls:
            calls.setdefault(call.section, []).append(call.call_id)
    rows = [("section_id", "type", "name", "ops", "bytes", "call_ids", "same_as", "operations")]
    for i, section in enumerate(program.sections):
        rows.append(
            (
                str(i),
                section_types(section),
                one_line(section.name),
                str(section_ops(program, section)),
                str(section_bytes(program, section)),
                ",".join(map(str, calls.get(i, ()))) or "-",
                str(section.twin) if section.twin != i else "-",
                one_line(operations_text(operations_of(program, section))),
            )
        )
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]) - 1)]
    lines = [
        f"program {program.name}: mapping={program.mapping} inference={program.inference}",
        *([f"pef: {digest}"] if digest else []),
        "",
        *(
            "  ".join(
                [*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]
            ).rstrip()
            for row in rows
        ),
        f"{len(program.sections)} sections of {len({s.twin for s in program.sections})} structures",
        "",
        *_schedules(program),
        *filter(None, [losses_line(program)]),
        "argins: " + (", ".join(f"{a.name}={a.default:g}" for a in program.argins) or "none"),
        "",
        "memory by role, bytes:",
    ]
    totals: Counter[Role] = Counter()
    for region in program.regions:
        totals[region.role] += region.nbytes
    lines += [f"  {role.name.lower()}: {totals[role]}" for role in Role if totals[role]]
    lines += _precision(program)
    return "".join(f"{one_line(line)}\n" for line in lines)


def _schedules(program: Program) -> list[str]:
    """The calls of the one graph; of several, each with its calls, inputs and outputs."""
    calls = [
        " ".join(f"{c.call_id}:{program.sections[c.section].name}" for c in schedule.calls)
        for schedule in program.schedules
    ]
    if len(calls) == 1:
        return [f"schedule: {calls[0]}"]
    lines = ["graphs:"]
    for schedule, text in zip(program.schedules, calls, strict=True):
        graph = program.graphs[schedule.graph]
        values, regions = graph.values, program.regions
        inputs = [_place(values[v].name, regions[values[v].region].name) for v in graph.inputs]
        outputs = [_place(o.name, regions[o.region].name) for o in graph.outputs]
        lines += [
            f"  {graph.name}",
            f"    schedule: {text}",
            f"    inputs: {', '.join(inputs) or 'none'}",
            f"    outputs: {', '.join(outputs)}",
        ]
    return lines


def _place(tensor: str, region: str) -> str:
    return tensor if tensor == region else f"{tensor} in {region}"


def _precision(program: Program) -> list[str]:
    """The precision of each operation: what its inputs hold -> what is kept of its results."""
    written = compiled_arithmetic(dict(program.metadata))
    lines = ["", f"precision of operations ({written}):"]
    for graph in program.graphs:
        prefix = f"{graph.name} " if len(program.graphs) > 1 else ""
        lines += [
            f"  {prefix}{i}  {graph.nodes[i].op}  {graph.nodes[i].module}  {text}"
            for i, text in precisions(graph.nodes, graph.values)
        ]
    return lines
