"""The page: what a program is, what it costs and where its time goes, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.costs.machine import Machine
from pef_schema import Program
from samba.inspection.estimate import (
    Estimate,
    amount_text,
    estimate,
)
from samba.reporting.graph_boxes import graph_boxes
from samba.reporting.markup import element, table, text
from samba.reporting.plots import memory_plot
from samba.reporting.time_part import Times, roofline, time_of_sections
from samba.support.layout import bytes_text, count_text, some

__all__ = ["page"]

_STYLE = Path(__file__).with_name("style.css")


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
        facts: What ``emulator.costs.description.describe`` says of it.
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
    parts = [_head(facts), _contents(facts, roofs=machine is not None)]
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
        if graph["memory"] is not None:
            cards.append((bytes_text(graph["memory"]["peak_bytes"]), f"peak of {graph['name']}"))
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


def _contents(facts: Mapping[str, Any], *, roofs: bool) -> str:
    links = []
    for number, graph in enumerate(facts["graphs"]):
        of = f" of {graph['name']}" if len(facts["graphs"]) > 1 else ""
        for part in ("time", *(("roofline",) if roofs else ()), "memory", "graph"):
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
        time_of_sections(chosen, found, machine, times),
    ]
    if found is not None and machine is not None:
        parts += [
            element("h2", {"id": f"roofline-{number}"}, text(f"Roofline of {graph['name']}")),
            roofline(program, chosen, found, machine, times),
        ]
    parts += [
        element("h2", {"id": f"memory-{number}"}, text(f"Memory of {graph['name']}")),
        *([] if graph["memory"] is None else _memory(graph["memory"])),
        element("h2", {"id": f"graph-{number}"}, text(f"Graph {graph['name']}")),
        _facts_of_graph(graph),
        element("p", {"class": "soft"}, "Modules, with the operations of their forward pass."),
        graph_boxes(graph, facts["sections"]),
    ]
    return "".join(parts)


def _memory(memory: Mapping[str, Any]) -> tuple[str, ...]:
    highest, alive = memory["peak"], memory["peak"]["alive"]
    shown = alive[:_LARGEST_ALIVE]
    where = "at rest" if highest["call_id"] is None else f"in call {highest['call_id']}"
    said = (
        f"The peak is {bytes_text(highest['bytes'])}, {where}; predicted from the program. The "
        f"largest {len(shown)} of {some(len(alive), 'value')} that lie in memory then:"
    )
    rows = [
        (text(bytes_text(h["bytes"])), text(h["role"]), text(h["name"]), text(h["module"]))
        for h in shown
    ]
    return (
        memory_plot(memory),
        element("p", None, text(said)),
        table(("bytes", "role", "name", "module"), rows, numbers=(0,), label="memory at the peak"),
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
    stored = list(facts["metadata"].items())
    parts = [element("h2", {"id": "origin"}, "Origin")]
    if rows:
        parts.append(_pairs(rows, "origin"))
    if stored:
        said = element(
            "summary", None, text(f"{some(len(stored), 'entry', 'entries')} that compile stored")
        )
        parts.append(element("details", {"class": "more"}, said, _pairs(stored, "metadata")))
    return "".join(parts)


def _pairs(rows: Sequence[tuple[str, Any]], label: str) -> str:
    cells = [(text(a), element("div", {"class": "modules"}, text(b))) for a, b in rows]
    return table(("what", "value"), cells, label=label)
