"""Where time goes: sections with their shares, what they cost, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.costs.machine import Machine
from pef_schema import Program
from pef_schema.section_facts import operations_text, short_paths
from samba.inspection.estimate import (
    Estimate,
    amount_text,
    multiplied_types,
    ratio_text,
    seconds_text,
)
from samba.reporting.graph_boxes import COLORS
from samba.reporting.markup import element, link_to_line, table, text
from samba.reporting.plots import Spot, roofline_plot
from samba.support.layout import bytes_text

__all__ = ["Times", "roofline", "time_of_sections"]

_PATHS = 240
"""Characters for the modules of a section."""
_LINES = 6
"""Source lines that a section shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured times.

    Args:
        source: The file that they are from.
        seconds: Of one call, by the section's name.
    """

    source: str
    seconds: Mapping[str, float]


def time_of_sections(
    sections: Sequence[Mapping[str, Any]],
    found: Estimate | None,
    machine: Machine | None,
    times: Times | None,
) -> str:
    """A bar along time, and a table with a row for each section.

    Args:
        sections: As ``inspect --json`` describes them, in the order of the schedule.
        found: Their bounds on the machine; None without one.
        machine: The machine.
        times: What was measured; None if nothing was.
    """
    bounds = {} if found is None else {row.section: row for row in found.rows}
    if times is not None:
        weights = {s["id"]: times.seconds.get(s["name"], 0.0) for s in sections}
        said = f"Widths are times measured, from {times.source}: the median of a call."
    elif machine is not None:
        weights = {s["id"]: bounds[s["id"]].seconds for s in sections if s["id"] in bounds}
        said = f"Widths are the least times on {machine.name}; nothing was measured."
    else:
        weights = {s["id"]: float(s["bytes"]) for s in sections}
        said = (
            "Widths are bytes read and written, since no times were given: --times FILE has them "
            "measured, --machine FILE.toml estimated."
        )
    total = sum(weights.values()) or 1.0
    bars = "".join(
        element(
            "a",
            {
                "class": f"c{s['id'] % COLORS}",
                "href": f"#section-{s['id']}",
                "style": f"flex-grow:{weights.get(s['id'], 0.0) / total:.6f}",
                "title": f"{s['name']}: {weights.get(s['id'], 0.0) / total:.1%}",
                "aria-label": s["name"],
                "tabindex": -1,
            },
            "",
        )
        for s in sections
    )
    head = ["id", "section", "type"]
    if times is not None:
        head += ["time", "share"]
    if machine is not None:
        head += ["at least", "bound by"]
    head += ["operations", "bytes", "FLOP/B", "modules: operations", "lines"]
    rows = []
    for s in sections:
        cost = s["cost"]
        cells = [
            element("span", {"id": f"section-{s['id']}"}, text(s["id"])),
            element("span", {"class": f"section c{s['id'] % COLORS}"}, text(s["name"])),
            text("+".join(s["types"])),
        ]
        if times is not None:
            seconds = times.seconds.get(s["name"])
            cells += [
                "not measured" if seconds is None else text(seconds_text(seconds)),
                "" if seconds is None else text(f"{seconds / total:.1%}"),
            ]
        if machine is not None:
            row = bounds.get(s["id"])
            cells += (
                ["", ""]
                if row is None
                else [
                    text(seconds_text(row.seconds)),
                    text(row.bound.binding.value),
                ]
            )
        intensity = cost["intensity"]
        modules = short_paths(tuple(s["modules"]), width=_PATHS)
        operations = operations_text(tuple(s["operations"].items()))
        cells += [
            text(amount_text(cost["product_flops"] + cost["other_flops"], "FLOP")),
            text(bytes_text(s["bytes"])),
            text(ratio_text(float("inf") if intensity is None else intensity)),
            element("div", {"class": "modules"}, text(f"{modules}: {operations}")),
            "<br>".join(link_to_line(line) for line in s["lines"][:_LINES])
            + (text(f" and {len(s['lines']) - _LINES} more") if len(s["lines"]) > _LINES else ""),
        ]
        rows.append(cells)
    numbers = [i for i, name in enumerate(head) if name in _NUMBERS]
    return (
        element("p", {"class": "soft"}, text(said))
        + element("div", {"class": "bars"}, bars)
        + table(head, rows, numbers=numbers, label="sections")
    )


_NUMBERS = frozenset({"id", "time", "share", "at least", "operations", "bytes", "FLOP/B"})


def roofline(
    program: Program,
    sections: Sequence[Mapping[str, Any]],
    found: Estimate,
    machine: Machine,
    times: Times | None,
) -> str:
    """Sections that multiply, against what the machine can do at most.

    Args:
        program: The program.
        sections: As for :func:`time_of_sections`.
        found: Their bounds.
        machine: The machine.
        times: What was measured; without it sections are where they could be at best.
    """
    rates = [machine.rate(dtype) for dtype in multiplied_types(program)]
    peak = max(rates, default=0.0)
    names = {s["id"]: s["name"] for s in sections}
    spots = []
    for row in found.rows:
        seconds = row.bound.seconds
        if times is not None:
            seconds = times.seconds.get(names.get(row.section, ""), 0.0)
        if seconds > 0 and row.cost.product_flops and row.cost.nbytes:
            spots.append(
                Spot(
                    section=row.section,
                    name=names.get(row.section, ""),
                    intensity=row.cost.product_flops / row.cost.nbytes,
                    rate=row.cost.product_flops / seconds,
                )
            )
    drawn = roofline_plot(spots, peak=peak, bandwidth=machine.bandwidth)
    how = "measured" if times is not None else "at best"
    said = (
        f"Operations of products a second ({how}) against operations for each byte, on "
        f"{machine.name}: {amount_text(peak, 'FLOP/s')}, {amount_text(machine.bandwidth, 'B/s')}."
    )
    return element("p", {"class": "soft"}, text(said)) + (
        drawn or element("p", None, "No section multiplies matrices.")
    )
