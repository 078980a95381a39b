"""What a program costs, and the time that a machine cannot go below: ``python -m samba estimate``.

Exit codes: 0 done, 1 the machine has no rate for what the program multiplies, or a file could not
be written, 2 wrong usage, 3 the PEF or the machine's file is missing or bad.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.costs.best_machine import best_machine
from emulator.costs.machine_file import BadMachineFile, machine_toml, read_machine
from emulator.costs.roofline import Bound, Cost, Machine, bound
from emulator.costs.steps import Costs, schedule_cost
from pef_schema import read_pef
from pef_schema.atomic import check_outputs
from pef_schema.errors import quoted
from pef_schema.module_paths import root_of, short_paths
from pef_schema.printable import json_text, say, say_text
from pef_schema.program import DType, Program
from pef_schema.program_facts import modules_of, owners, section_types
from samba.inspection.running import (
    BAD_FILE,
    DONE,
    WrongUsage,
    chosen_graph,
    run_command,
    write_output,
)
from samba.support import layout
from samba.support.layout import count_text, paragraph, table, terminal_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One section of a schedule.

    Args:
        section: Its id.
        calls: How often the schedule calls it.
        cost: Of one call.
        bound: Of one call.
    """

    section: int
    calls: int
    cost: Cost
    bound: Bound

    @property
    def seconds(self) -> float:
        """The lower bound on the time of all calls."""
        return self.calls * self.bound.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One schedule on one machine.

    Args:
        schedule: Its index.
        graph: Name of its graph.
        rows: Its sections, in the order of their first calls.
        whole: The schedule as one executable.
        bound: Of that.
    """

    schedule: int
    graph: str
    rows: tuple[Row, ...]
    whole: Cost
    bound: Bound

    @property
    def seconds(self) -> float:
        """The time that the sections cannot go below, one by one."""
        return sum(row.seconds for row in self.rows)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Ops that are in no figure."""
        return tuple(sorted({op for row in self.rows for op in row.cost.unknown}))


def multiplied_types(program: Program) -> tuple[DType, ...]:
    """Types that a program multiplies: those that a machine needs a rate for."""
    dtypes = {
        dtype
        for schedule in range(len(program.schedules))
        for dtype, _ in schedule_cost(program, schedule).products
    }
    return tuple(sorted(dtypes))


def estimate(program: Program, schedule: int, machine: Machine) -> Estimate:
    """Estimate a schedule on a machine.

    Args:
        program: The program.
        schedule: Index of its schedule.
        machine: The machine.

    Raises:
        NoRate: If the machine's rate of a type is not known.
    """
    entry = program.schedules[schedule]
    calls: dict[int, int] = {}
    for call in entry.calls:
        calls[call.section] = calls.get(call.section, 0) + 1
    costs = Costs(program)
    whole = costs.of_schedule(schedule)
    machine.check(dtype for dtype, _ in whole.products)
    rows: list[Row] = []
    for section, count in calls.items():
        cost = costs.of_section(section)
        rows.append(Row(section=section, calls=count, cost=cost, bound=bound(cost, machine)))
    return Estimate(
        schedule=schedule,
        graph=program.graphs[entry.graph].name,
        rows=tuple(rows),
        whole=whole,
        bound=bound(whole, machine),
    )


SORTS: dict[str, Callable[[Row], float] | None] = {
    "schedule": None,
    "time": lambda row: row.seconds,
    "flops": lambda row: row.cost.flops,
    "bytes": lambda row: row.cost.nbytes,
    "intensity": lambda row: row.cost.intensity,
}
"""Orders of the rows: that of the schedule, or the largest first."""


def sorted_rows(found: Estimate, order: str) -> Sequence[Row]:
    """The rows in an order of :data:`SORTS`."""
    key = SORTS[order]
    return found.rows if key is None else sorted(found.rows, key=key, reverse=True)


def as_dict(
    program: Program, machine: Machine, found: Sequence[Estimate], order: str
) -> dict[str, Any]:
    """Estimates as plain data, for JSON; docs/cost.md describes the keys.

    Args:
        program: The program.
        machine: The machine.
        found: Its estimates.
        order: Of the sections.
    """
    owned = owners(program)
    return {
        "program": program.name,
        "machine": {
            "name": machine.name,
            "flops_per_second": {d.name.lower(): rate for d, rate in machine.rates},
            "bytes_per_second": machine.bandwidth,
            "caches": [
                {"bytes": c.nbytes, "bytes_per_second": c.bandwidth} for c in machine.caches
            ],
        },
        "graphs": [
            {
                "name": one.graph,
                "sections_seconds": one.seconds,
                "whole": _cost_dict(one.whole, one.bound),
                "unknown": list(one.unknown),
                "sections": [
                    {
                        "id": row.section,
                        "name": program.sections[row.section].name,
                        "types": [k.name for k in program.sections[row.section].kinds],
                        "calls": row.calls,
                        **_cost_dict(row.cost, row.bound),
                        "modules": list(modules_of(program, program.sections[row.section], owned)),
                    }
                    for row in sorted_rows(one, order)
                ],
            }
            for one in found
        ],
    }


def _cost_dict(cost: Cost, limit: Bound) -> dict[str, Any]:
    return {
        "seconds": limit.seconds,
        "binding": limit.binding.value,
        "compute_seconds": limit.compute,
        "memory_seconds": limit.memory,
        **cost.as_dict(),
    }


def table_cells(program: Program, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Rows as cells of a table, in the order of :data:`HEAD`."""
    owned = owners(program)
    root = root_of(node.module for graph in program.graphs for node in graph.nodes)
    cells: list[tuple[str, ...]] = []
    for row in rows:
        section = program.sections[row.section]
        cells.append(
            (
                str(row.section),
                section.name + (f" x{row.calls}" if row.calls > 1 else ""),
                section_types(section),
                seconds_text(row.seconds),
                row.bound.binding.value,
                count_text(row.cost.product_flops),
                count_text(row.cost.other_flops),
                count_text(row.cost.nbytes),
                ratio_text(row.cost.intensity),
                short_paths(modules_of(program, section, owned), root=root),
            )
        )
    return cells


HEAD = (
    *("id", "section", "type", "at least", "bound by", "products", "other", "bytes"),
    *("FLOP/B", "modules"),
)
"""Names of a table's columns."""


def seconds_text(seconds: float) -> str:
    """A time for people.

    Example:
        >>> seconds_text(0.0), seconds_text(3.21e-7), seconds_text(0.00123), seconds_text(2.5)
        ('0', '0.321 us', '1.23 ms', '2.5 s')
    """
    return layout.seconds_text(seconds) if seconds else "0"


def amount_text(count: float, unit: str) -> str:
    """A number with its unit.

    Example:
        >>> amount_text(96, "FLOP"), amount_text(15_680, "B")
        ('96 FLOP', '15.7 kB')
    """
    text = count_text(count)
    return text + unit if " " in text else f"{text} {unit}"


def ratio_text(ratio: float) -> str:
    """Operations for each byte.

    Example:
        >>> ratio_text(0.0), ratio_text(0.251), ratio_text(123.4), ratio_text(float("inf"))
        ('0', '0.251', '123', '-')
    """
    return "-" if ratio == float("inf") else f"{ratio:.3g}"


_THIS = "this"
_SAVED = (DType.FLOAT32, DType.BFLOAT16)
"""Types that a saved machine has a rate of, beside those that the program multiplies."""

_NOTE = (
    "These times are lower bounds: the larger of the times that the products and the bytes take at "
    "the machine's best rates. Latency is not modelled: small sections take longer."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those behind its name.

    Returns:
        The exit code.
    """
    return run_command(lambda: _estimate(arguments))


def _estimate(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    if args.save is not None and args.machine != _THIS:
        raise WrongUsage("--save FILE keeps a measurement, so it needs --machine this.")
    program = read_pef(args.pef)
    graph = chosen_graph(program, args.graph, pef=args.pef)
    check_outputs([None if args.save in ("", "-") else args.save])
    try:
        machine = _machine(args.machine, program, saved=args.save is not None)
    except BadMachineFile as error:
        say_text(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    if args.save is not None:
        write_output(
            args.save,
            machine_toml(machine).encode(),
            inputs={"the PEF": args.pef},
            what="machine",
            then=f"python -m samba estimate {args.pef} --machine {args.save}",
            told=sys.stderr if args.json else None,
        )
    schedules = [i for i, s in enumerate(program.schedules) if graph in (None, s.graph)]
    estimates = [estimate(program, i, machine) for i in schedules]
    if args.json:
        say_text(json_text(as_dict(program, machine, estimates, args.sort), indent=2))
    else:
        _print(program, machine, estimates, args.sort)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba estimate",
        description="Print for each section of a PEF a lower bound on its time on a machine, and "
        "whether it is bound by products or by memory. Nothing is compiled or run.",
        epilog="docs/cost.md says what is counted, and what a machine's file holds.",
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument(
        "--machine",
        required=True,
        metavar="this|FILE.toml",
        help="measure this machine, which takes some seconds, or read a machine from a file",
    )
    parser.add_argument("--save", metavar="FILE", help="write the measurements to a TOML file")
    parser.add_argument("--graph", metavar="NAME", help="only this graph (default: all)")
    parser.add_argument(
        "--sort", choices=tuple(SORTS), default="schedule", help="order of the sections"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _machine(named: str, program: Program, *, saved: bool) -> Machine:
    if named != _THIS:
        return read_machine(named)
    from emulator.costs.measuring import measured_machine  # noqa: PLC0415  # it starts jax

    dtypes = {*multiplied_types(program), *(_SAVED if saved else ())}
    best = best_machine(lambda: measured_machine(dtypes), dtypes)
    if not best.is_quiet:
        say(
            f"measured under load: other processes took {best.others:.0%} of the processors, so "
            "the machine's best rates may be higher and these bounds too high. Measure again when "
            "it is quiet: the best of all measurements counts.",
            file=sys.stderr,
        )
    return best.machine


def _print(program: Program, machine: Machine, estimates: Sequence[Estimate], order: str) -> None:
    width = terminal_width()
    rates = [f"{d.name.lower()} {amount_text(r, 'FLOP/s')}" for d, r in machine.rates]
    caches = [
        f"{amount_text(c.bandwidth, 'B/s')} up to {amount_text(c.nbytes, 'B')}"
        for c in machine.caches
    ]
    memory = f"memory {amount_text(machine.bandwidth, 'B/s')}"
    near = f" ({', '.join(caches)})" if caches else ""
    say_text(
        paragraph(
            f"machine {quoted(machine.name)}: {', '.join([*rates, memory])}{near}", width=width
        )
    )
    for one in estimates:
        say()
        rows = sorted_rows(one, order)
        say(f"graph {quoted(one.graph)} of {quoted(program.name)}: {len(rows)} sections")
        say_text(table(HEAD, table_cells(program, rows), width=width, right=(0, 3, 5, 6, 7, 8)))
        say_text(
            paragraph(f"sections one by one: at least {seconds_text(one.seconds)}", width=width)
        )
        say_text(paragraph(_whole_text(one), width=width))
        if one.unknown:
            say_text(
                paragraph(
                    f"not counted, cost unknown: {', '.join(map(quoted, one.unknown))}",
                    width=width,
                )
            )
    say()
    say_text(paragraph(_NOTE, width=width))


def _whole_text(one: Estimate) -> str:
    whole = one.whole
    return (
        f"as one executable: at least {seconds_text(one.bound.seconds)}, bound by "
        f"{one.bound.binding.value}; products {amount_text(whole.product_flops, 'FLOP')}, "
        f"other {amount_text(whole.other_flops, 'FLOP')}, {amount_text(whole.nbytes, 'B')}, "
        f"{ratio_text(whole.intensity)} FLOP/B"
    )
