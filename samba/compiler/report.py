"""The ``.pef.log`` beside a PEF: sections, schedule and memory for people to read."""

from __future__ import annotations

from collections import Counter

from emulator.op_facts.precision import precisions
from pef_schema.printable import one_line
from pef_schema.program import Program, Role
from pef_schema.region_life import alive_at, peak
from pef_schema.section_facts import (
    modules_text,
    operations_of,
    operations_text,
    owners,
    section_bytes,
    section_ops,
    section_types,
)
from samba.compiler.arithmetic import compiled_arithmetic
from samba.compiler.losses import losses_line

_MODULES = 100
"""Characters for the modules of a section."""
_ALIVE = 10
"""Regions that are listed at the peak of memory."""
_LEGEND = (
    "ops: operations, those computed again for the backward pass included, or updated parameters",
    "bytes: device memory that the section reads or writes, each region once",
    "call_ids: for run_from_call_id and run_until_call_id of session.run",
    "same_as: the first section of the same structure, whose compiled code it shares",
    "modules: a__{b,c} are a__b and a__c; a{.,__b} are a and a__b; +2 are two more",
    "operations: linear:2 are two of them",
)


def pef_log(program: Program, digest: str = "") -> str:
    """Describe a program: its sections with modules and operations, losses, memory and its peak.

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
        *_LEGEND,
        "",
        *_modules(program),
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
    for index in range(len(program.schedules)):
        lines += _peak(program, index)
    lines += _precision(program)
    return "".join(f"{one_line(line)}\n" for line in lines)


def _modules(program: Program) -> list[str]:
    """What each section computes, in a line each: the name alone does not say which layer it is."""
    owned = owners(program)
    rows = [
        (str(i), one_line(section.name), modules_text(program, section, owned, width=_MODULES))
        for i, section in enumerate(program.sections)
    ]
    sizes = [max((len(row[c]) for row in rows), default=0) for c in (0, 1)]
    lines = ["modules and operations of sections:"]
    for (number, name, modules), section in zip(rows, program.sections, strict=True):
        work = f"{modules}: {operations_text(operations_of(program, section))}"
        lines.append(f"  {number.rjust(sizes[0])}  {name.ljust(sizes[1])}  {work}".rstrip())
    return lines


def _peak(program: Program, index: int) -> list[str]:
    """The call of a schedule during which most bytes are held, and what these are."""
    schedule = program.schedules[index]
    highest = peak(program, index)
    whose = f" of graph {program.graphs[schedule.graph].name}" if len(program.graphs) > 1 else ""
    where = ""
    if highest.call >= 0:
        call = schedule.calls[highest.call]
        where = f" in call {call.call_id} ({program.sections[call.section].name})"
    alive = alive_at(program, index, highest.call)
    lines = [
        "",
        f"peak of memory along the schedule{whose}, bytes: {highest.total}{where}",
        *(f"  {role.name.lower()}: {size}" for role, size in highest.bytes_by_role),
    ]
    if alive:
        lines.append(f"the largest of {len(alive)} regions that are alive there:")
    for region in (program.regions[i] for i in alive[:_ALIVE]):
        lines.append(f"  {region.nbytes}  {region.role.name.lower()}  {region.name}")
    return lines


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
