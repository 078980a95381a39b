"""The page: what a program is, what it costs and where its time goes, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.costs.machine import Machine
from pef_schema import Program
from pef_schema.section_facts import operations_text, short_paths
from samba.inspection.estimate import (
    Estimate,
    amount_text,
    count_text,
    estimate,
    multiplied_types,
    ratio_text,
    seconds_text,
)
from samba.inspection.layout import bytes_text, some
from samba.reporting.graph_boxes import COLORS, graph_boxes
from samba.reporting.markup import element, link_to_line, table, text
from samba.reporting.plots import Spot, memory_plot, roofline_plot

__all__ = ["Times", "page"]

_STYLE = Path(__file__).with_name("style.css")
_PATHS = 240
"""Characters for the modules of a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured times.

    Args:
        source: The file that they are from.
        seconds: Of one call, by the section's name.
    """

    source: str
    seconds: Mapping[str, float]


def page(
    program: Program,
    facts: Mapping[str, Any],
    *,
    machine: Machine | None = None,
    times: Times | None = None,
) -> str:
    """Make the page.

    Args:
        program: The program.
        facts: What ``samba.inspection.description.describe`` says of it.
        machine: A machine to hold it against; None for none.
        times: Times that were measured; None for none.

    Returns:
        An HTML document that loads nothing and runs no script.

    Raises:
        NoRate: If the machine has no rate for what the program multiplies.
    """
    found = {}
    if machine is not None:
        for index, schedule in enumerate(program.schedules):
            found[program.graphs[schedule.graph].name] = estimate(program, index, machine)
    parts = [_head(facts), _contents(facts)]
    for number, graph in enumerate(facts["graphs"]):
        parts.append(
            _graph(program, facts, graph, number, found.get(graph["name"]), machine, times)
        )
    parts += [_hyperparameters(facts), _origin(facts)]
    return (
        "<!DOCTYPE html>\n"
        + element(
            "html",
            {"lang": "en"},
            element(
                "head",
                None,
                '<meta charset="utf-8">'
                '<meta name="viewport" content="width=device-width, initial-scale=1">'
                # Whatever a file smuggled into the page could load or run nothing.
                '<meta http-equiv="Content-Security-Policy" '
                "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
                element("title", None, text(facts["name"])),
                f"<style>{_STYLE.read_text(encoding='utf-8')}</style>",
            ),
            element("body", None, element("main", None, *parts)),
        )
        + "\n"
    )


def _head(facts: Mapping[str, Any]) -> str:
    counts = facts["counts"]
    kind = "inference" if facts["inference"] else "training"
    cards = [
        (some(counts["nodes"], "node"), f"in {some(counts['graphs'], 'graph')}"),
        (some(counts["sections"], "section"), f"of {some(counts['structures'], 'structure')}"),
        (bytes_text(counts["bytes"]), f"in {some(counts['regions'], 'region')}"),
    ]
    for graph in facts["graphs"]:
        if graph["peak"] is not None:
            cards.append((bytes_text(graph["peak"]["bytes"]), f"peak of {graph['name']}"))
        if graph["cost"] is not None:
            flops = graph["cost"]["product_flops"] + graph["cost"]["other_flops"]
            cards.append((amount_text(flops, "FLOP"), f"a run of {graph['name']}"))
    return (
        element("h1", None, text(facts["name"]))
        + element(
            "p",
            {"class": "soft"},
            text(f"{kind}, {facts['mapping']} mapping, {facts['arithmetic']}"),
        )
        + element(
            "ul",
            {"class": "cards"},
            *(element("li", None, element("b", None, text(a)), text(b)) for a, b in cards),
        )
    )


def _contents(facts: Mapping[str, Any]) -> str:
    links = []
    for number, graph in enumerate(facts["graphs"]):
        of = f" of {graph['name']}" if len(facts["graphs"]) > 1 else ""
        for part in ("time", "memory", "graph"):
            links.append((f"#{part}-{number}", part + of))
    links += [("#settings", "settings"), ("#origin", "origin")]
    items = (element("li", None, element("a", {"href": to}, text(name))) for to, name in links)
    return element("nav", {"aria-label": "parts of this page"}, element("ul", None, *items))


def _graph(
    program: Program,
    facts: Mapping[str, Any],
    graph: Mapping[str, Any],
    number: int,
    found: Estimate | None,
    machine: Machine | None,
    times: Times | None,
) -> str:
    called = list(dict.fromkeys(call["section"] for call in graph["schedule"]))
    sections = {s["id"]: s for s in facts["sections"]}
    chosen = [sections[i] for i in called if i in sections]
    parts = [
        element("h2", {"id": f"time-{number}"}, text(f"Time: sections of {graph['name']}")),
        _time(chosen, found, machine, times),
    ]
    if found is not None and machine is not None:
        parts += [
            element("h3", None, "Roofline"),
            _roofline(program, chosen, found, machine, times),
        ]
    parts += [
        element("h2", {"id": f"memory-{number}"}, text(f"Memory of {graph['name']}")),
        memory_plot(graph),
        _alive(facts, graph),
        element("h2", {"id": f"graph-{number}"}, text(f"Graph {graph['name']}")),
        _facts_of_graph(graph),
        graph_boxes(graph, facts["sections"]),
    ]
    return "".join(parts)


def _time(
    sections: Sequence[Mapping[str, Any]],
    found: Estimate | None,
    machine: Machine | None,
    times: Times | None,
) -> str:
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
            "<br>".join(link_to_line(line) for line in s["lines"][:6])
            + (text(f" and {len(s['lines']) - 6} more") if len(s["lines"]) > 6 else ""),
        ]
        rows.append(cells)
    numbers = [i for i, name in enumerate(head) if name in _NUMBERS]
    return (
        element("p", {"class": "soft"}, text(said))
        + element("div", {"class": "bars"}, bars)
        + table(head, rows, numbers=numbers, label="sections")
    )


_NUMBERS = frozenset({"id", "time", "share", "at least", "operations", "bytes", "FLOP/B"})


def _roofline(
    program: Program,
    sections: Sequence[Mapping[str, Any]],
    found: Estimate,
    machine: Machine,
    times: Times | None,
) -> str:
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
        f"{machine.name}: {amount_text(peak, 'FLOP/s')} and {amount_text(machine.bandwidth, 'B/s')}."
    )
    return element("p", {"class": "soft"}, text(said)) + (
        drawn or element("p", None, "No section multiplies matrices.")
    )


def _alive(facts: Mapping[str, Any], graph: Mapping[str, Any]) -> str:
    highest = graph["peak"]
    if highest is None:
        return ""
    regions = {r["id"]: r for r in facts["regions"]}
    alive = sorted(
        (regions[i] for i in highest["alive"] if i in regions), key=lambda r: -r["bytes"]
    )
    shown = alive[:_LARGEST_ALIVE]
    where = "at rest" if highest["call_id"] is None else f"in call {highest['call_id']}"
    said = (
        f"The peak is {bytes_text(highest['bytes'])}, {where}; predicted from the program. The "
        f"largest {len(shown)} of {some(len(alive), 'region')} that hold something then:"
    )
    rows = [
        (
            text(bytes_text(r["bytes"])),
            text(r["role"]),
            text(r["name"]),
            text(f"{r['dtype']}[{', '.join(map(str, r['shape']))}]"),
        )
        for r in shown
    ]
    return element("p", None, text(said)) + table(
        ("bytes", "role", "name", "form"), rows, numbers=(0,), label="memory at the peak"
    )


_LARGEST_ALIVE = 12


def _facts_of_graph(graph: Mapping[str, Any]) -> str:
    precision = ", ".join(f"{how}: {some(n, 'node')}" for how, n in graph["precision"].items())
    losses = ", ".join(graph["losses"])
    lines = [
        ("inputs", ", ".join(_tensor(t) for t in graph["inputs"])),
        ("outputs", ", ".join(_tensor(t) for t in graph["outputs"])),
        ("losses", losses or "none"),
        ("precision", precision or "no floating point results"),
    ]
    unknown = () if graph["cost"] is None else graph["cost"]["unknown"]
    note = ""
    if unknown:
        note = element(
            "p", {"class": "note"}, text(f"In no figure, cost unknown: {', '.join(unknown)}")
        )
    if (
        graph["outputs"]
        and not graph["losses"]
        and any(o["gradient"] != "absent" for o in graph["outputs"])
    ):
        note += element("p", {"class": "note"}, "No output is a loss: gradients are to be given.")
    return note + table(
        ("what", "which"), [(text(a), text(b)) for a, b in lines], label="facts of the graph"
    )


def _tensor(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"


def _hyperparameters(facts: Mapping[str, Any]) -> str:
    rows = [
        (text(h["name"]), text(h["kind"]), text(h["default"])) for h in facts["hyperparameters"]
    ]
    optimizers = [
        (
            text(o["name"]),
            text(o["kind"]),
            text(some(len(o["parameters"]), "parameter")),
            text(", ".join(f"{k}={v}" for k, v in o["options"].items())),
        )
        for o in facts["optimizers"]
    ]
    parts = [element("h2", {"id": "settings"}, "Settings")]
    if optimizers:
        head = ("optimizer", "kind", "updates", "compiled options")
        parts.append(table(head, optimizers, label="optimizers"))
    if rows:
        parts.append(element("h3", None, "Hyperparameters, which a run may change"))
        parts.append(table(("name", "kind", "default"), rows, label="hyperparameters"))
    if not rows and not optimizers:
        parts.append(element("p", None, "No optimizers and no hyperparameters."))
    return "".join(parts)


def _origin(facts: Mapping[str, Any]) -> str:
    file = facts["file"]
    rows = (
        []
        if file is None
        else [
            ("file", file["path"]),
            ("bytes", count_text(file["bytes"])),
            ("format", file["format"]),
            ("digest", file["digest"]),
        ]
    )
    rows += facts["metadata"].items()
    cells = [(text(a), element("div", {"class": "modules"}, text(b))) for a, b in rows]
    return element("h2", {"id": "origin"}, "Origin") + table(
        ("what", "value"), cells, label="origin"
    )
