"""What a program costs, and the time that a machine cannot go below: figures for the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.costs.roofline import Bound, Cost, Machine, bound
from emulator.costs.steps import Costs, schedule_cost
from pef_schema.program import DType, Program
from pef_schema.program_facts import modules_of, modules_text, owners, section_types
from samba.support.layout import count_text

__all__ = [
    "HEAD",
    "SORTS",
    "Estimate",
    "Row",
    "amount_text",
    "as_dict",
    "estimate",
    "multiplied_types",
    "ratio_text",
    "seconds_text",
    "sorted_rows",
    "table_cells",
]


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
        """The time that all calls cannot go below."""
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
    found = {
        dtype
        for schedule in range(len(program.schedules))
        for dtype, _ in schedule_cost(program, schedule).products
    }
    return tuple(sorted(found))


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
                modules_text(program, section, owned),
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
    if seconds == 0:
        return "0"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


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
