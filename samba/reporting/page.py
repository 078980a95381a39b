"""The page: what a program is, what it costs and where its time goes, without a script.

``page.html`` is its template. All that comes from a file reaches it as plain text: jinja2, which
torch brings, escapes what HTML would obey, and :func:`~pef_schema.printable.one_line` what a
terminal would.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup

from emulator.costs.description import describe
from emulator.costs.roofline import Machine
from pef_schema import Program
from pef_schema.module_paths import plain_path, short_paths
from pef_schema.printable import one_line
from pef_schema.program_facts import operations_text
from samba.compiler.forms.listing import made_text, model_of
from samba.inspection.estimate import (
    Estimate,
    amount_text,
    estimate,
    multiplied_types,
    ratio_text,
    seconds_text,
)
from samba.reporting.plots import HEIGHT, WIDTH, Spot, memory_plot, roofline_plot
from samba.support.layout import bytes_text, count_text, some

_STYLE = Path(__file__).with_name("style.css")
_TEMPLATE = Path(__file__).with_name("page.html")
_NUMBERS = frozenset({"id", "time", "share", "at least", "operations", "bytes", "FLOP/B"})
"""Columns that hold numbers."""
_LONG = frozenset({"name", "module", "which", "value", "default", "compiled options", "optimizer"})
"""Columns with texts of any length, which may be broken anywhere."""
_FILES, _LINES = 4, 6
"""Files, and lines of each, that a section shows."""
_LINKED = 200
"""Calls up to which each is a link in the memory."""
_OPEN = 100
"""Sections that are shown at once; a page of thousands would load slowly."""
_BRIEF = 8
"""Sections of a graph that a summary has."""
_PATHS = 240
"""Characters for the modules of a section."""
_LARGEST_ALIVE = 12
_DEPTH = 24
"""Boxes within each other; a file may name any number of modules."""

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured times.

    Args:
        source: The file that they are from.
        seconds: Of one call, by the section's name.
    """

    source: str
    seconds: Mapping[str, float]


@dataclass(slots=True)
class _Module:
    """A module with what runs in it, in order: modules and nodes.

    Args:
        name: Its own name.
        path: With those of the modules around it.
        parts: Modules and nodes.
        flops: Of all nodes inside.
        nodes: How many they are.
    """

    name: str
    path: str
    parts: list[_Module | dict[str, Any]] = field(default_factory=list["_Module | dict[str, Any]"])
    flops: float = 0.0
    nodes: int = 0


def page(
    program: Program, facts: Facts, *, machine: Machine | None = None, times: Times | None = None
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
    estimates: dict[str, Estimate] = {}
    if machine is not None:
        for index, schedule in enumerate(program.schedules):
            name = program.graphs[schedule.graph].name
            estimates[name] = estimate(program, index, machine)
    root = model_of(facts)
    graphs = [
        _graph(program, facts, root, graph, number, estimates.get(graph["name"]), machine, times)
        for number, graph in enumerate(facts["graphs"])
    ]
    return _template().render(
        summary=False,
        facts=facts,
        style=Markup(_STYLE.read_text(encoding="utf-8")),  # our own file
        cards=_cards(facts),
        graphs=graphs,
        root=root,
        names={section["id"]: section["name"] for section in facts["sections"]},
        optimizers=[
            (
                o["name"],
                o["kind"],
                some(len(o["parameters"]), "parameter"),
                ", ".join(f"{k}={v}" for k, v in o["options"].items()),
            )
            for o in facts["optimizers"]
        ],
        hyperparameters=[(h["name"], h["kind"], h["default"]) for h in facts["hyperparameters"]],
        origin=_origin(facts["file"]),
    )


def summary(program: Program, rows: Sequence[tuple[str, str]] = ()) -> str:
    """Make what a notebook shows of a program, in the notebook's own style.

    Args:
        program: The program.
        rows: What else there is to say: a name and a text each.

    Returns:
        HTML to stand in a page: the counts of the page, losses, and the first sections.
    """
    facts = describe(program)
    root = model_of(facts)
    graphs, losses = [], []
    for graph in facts["graphs"]:
        content = _sections(_called(facts, graph), root, None, None, None)
        head, sections = content["head"], content["rows"]
        shown = [[section[name] for name in head] for section in sections[:_BRIEF]]
        graphs.append((graph["name"], head, shown, max(0, len(sections) - _BRIEF)))
        losses += graph["losses"]
    return _template().render(
        summary=True,
        facts=facts,
        cards=_cards(facts),
        rows=[*rows, ("losses", ", ".join(losses) or "none")],
        graphs=graphs,
    )


@functools.cache
def _template() -> Template:
    """The template, in which a line is joined to the next one without the blanks around both."""
    source = "".join(line.strip() for line in _TEMPLATE.read_text(encoding="utf-8").splitlines())
    environment = Environment(
        loader=DictLoader({"page": source}),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
    )
    environment.globals.update(
        NUMBERS=_NUMBERS,
        LONG=_LONG,
        FILES=_FILES,
        LINES=_LINES,
        LINKED=_LINKED,
        OPEN=_OPEN,
        WIDTH=WIDTH,
        HEIGHT=HEIGHT,
        amount=amount_text,
        clean=one_line,
        forms=_forms,
        is_place=is_place,
        plain_path=plain_path,
        some=some,
    )
    return environment.get_template("page")


def _finalized(value: object) -> object:
    """What stands in the page for a value, before it is escaped."""
    return value if isinstance(value, Markup) else one_line(str(value))


def is_place(line: str) -> bool:
    """Whether a source line names a place in a file, to which the page then has a link.

    Args:
        line: As ``net.py:12``, a path from where the page is opened or from the root.

    Example:
        >>> is_place("net.py:12"), is_place("javascript:alert(1)"), is_place("")
        (True, False, False)
    """
    path, _, number = line.rpartition(":")
    return bool(path) and number.isdecimal() and ":" not in path


def _cards(facts: Facts) -> list[tuple[str, str]]:
    counts = facts["counts"]
    cards = [
        (some(counts["nodes"], "node"), f"in {some(counts['graphs'], 'graph')}"),
        (some(counts["sections"], "section"), f"of {some(counts['structures'], 'structure')}"),
        (bytes_text(counts["bytes"]), f"in {some(counts['regions'], 'region')}"),
    ]
    for graph in facts["graphs"]:
        if graph["memory"] is not None:
            cards.append((bytes_text(graph["memory"]["peak_bytes"]), f"peak of {graph['name']}"))
        if graph["cost"] is not None:
            cards.append((_flops(graph["cost"]), f"a run of {graph['name']}"))
    return cards


def _graph(
    program: Program,
    facts: Facts,
    root: str,
    graph: Facts,
    number: int,
    limits: Estimate | None,
    machine: Machine | None,
    times: Times | None,
) -> dict[str, Any]:
    chosen = _called(facts, graph)
    boxes = _boxes(graph["nodes"])
    roofline = None
    if limits is not None and machine is not None:
        roofline = _roofline(program, chosen, limits, machine, times)
    precision = ", ".join(f"{how}: {some(n, 'node')}" for how, n in graph["precision"].items())
    return {
        "name": graph["name"],
        "number": number,
        "sections": _sections(chosen, root, limits, machine, times),
        "roofline": roofline,
        "memory": None if graph["memory"] is None else _memory(graph["memory"], root),
        "unknown": () if graph["cost"] is None else graph["cost"]["unknown"],
        "without_loss": not graph["losses"]
        and any(o["gradient"] != "absent" for o in graph["outputs"]),
        "facts": [
            ("inputs", ", ".join(f"{t['name']} {_forms([t])}" for t in graph["inputs"])),
            ("outputs", "; ".join(_output(t, root) for t in graph["outputs"])),
            ("losses", ", ".join(graph["losses"]) or "none"),
            ("precision", precision or "no floating point results"),
        ],
        "parts": boxes.parts,
        "flops": boxes.flops or 1.0,
    }


def _called(facts: Facts, graph: Facts) -> list[Facts]:
    """The sections that a graph's schedule calls, each once."""
    sections = {s["id"]: s for s in facts["sections"]}
    called = dict.fromkeys(call["section"] for call in graph["schedule"])
    return [sections[i] for i in called if i in sections]


def _boxes(nodes: Sequence[dict[str, Any]]) -> _Module:
    """Nodes in boxes within boxes by module, in the order in which they run.

    A module that runs in two stretches has two boxes.
    """
    root = _Module("", "")
    for node in nodes:
        around = [root]
        parts = node["module"].split("__", _DEPTH - 1) if node["module"] else []
        for depth, part in enumerate(parts):
            path = "__".join(parts[: depth + 1])
            last = around[-1].parts[-1] if around[-1].parts else None
            if not isinstance(last, _Module) or last.path != path:
                last = _Module(part, path)
                around[-1].parts.append(last)
            around.append(last)
        around[-1].parts.append(node)
        for module in around:
            module.flops += node["flops"] or 0
            module.nodes += 1
    return root


def _sections(
    sections: Sequence[Facts],
    root: str,
    limits: Estimate | None,
    machine: Machine | None,
    times: Times | None,
) -> dict[str, Any]:
    """Shares of the sections, and what stands in a row for each of them."""
    bounds = {} if limits is None else {row.section: row for row in limits.rows}
    if times is not None:
        weights = {s["id"]: times.seconds.get(s["name"], 0.0) for s in sections}
        title = "Time, measured"
        said = f"Widths are measured times from {times.source}: the median of a call."
    elif machine is not None:
        weights = {s["id"]: bounds[s["id"]].seconds for s in sections if s["id"] in bounds}
        title = "Least time, estimated"
        said = f"Widths are the least times on {machine.name}; nothing was measured."
    else:
        weights = {s["id"]: float(s["bytes"]) for s in sections}
        title = "Bytes read and written"
        said = (
            "Widths are bytes read and written, since no times were given: pass --times FILE for "
            "measured times or --machine FILE.toml for estimates."
        )
    total = sum(weights.values()) or 1.0
    rows = []
    for s in sections:
        seconds = None if times is None else times.seconds.get(s["name"])
        row = bounds.get(s["id"])
        intensity = s["cost"]["intensity"]
        rows.append(
            {
                "id": s["id"],
                "section": s["name"],
                "type": "+".join(s["types"]),
                "time": "not measured" if seconds is None else seconds_text(seconds),
                "share": "" if seconds is None else f"{seconds / total:.1%}",
                "at least": "" if row is None else seconds_text(row.seconds),
                "bound by": "" if row is None else row.bound.binding.value,
                "operations": _flops(s["cost"]),
                "bytes": bytes_text(s["bytes"]),
                "FLOP/B": ratio_text(float("inf") if intensity is None else intensity),
                "modules": short_paths(s["modules"], root=root, width=_PATHS),
                "work": operations_text(s["operations"].items()),
                "files": _by_file(s["lines"]),
            }
        )
    return {
        "title": title,
        "said": said,
        "bars": [
            {"id": s["id"], "name": s["name"], "share": weights.get(s["id"], 0.0) / total}
            for s in sections
        ],
        "head": [
            *("id", "section", "type"),
            *(() if times is None else ("time", "share")),
            *(() if machine is None else ("at least", "bound by")),
            *("operations", "bytes", "FLOP/B"),
        ],
        "rows": rows,
    }


def _by_file(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Source lines in the order of their files, each file's in theirs."""
    files: dict[str, list[str]] = {}
    for line in lines:
        files.setdefault(line.rpartition(":")[0], []).append(line)
    return [(file, sorted(of, key=lambda line: (len(line), line))) for file, of in files.items()]


def _roofline(
    program: Program,
    sections: Sequence[Facts],
    limits: Estimate,
    machine: Machine,
    times: Times | None,
) -> dict[str, Any]:
    """Sections that multiply, against what the machine can do at most.

    Without measured times sections are where they could be at best.
    """
    peak = max((machine.rate(dtype) for dtype in multiplied_types(program)), default=0.0)
    names = {s["id"]: s["name"] for s in sections}
    spots = []
    for row in limits.rows:
        name = names.get(row.section, "")
        seconds = row.bound.seconds if times is None else times.seconds.get(name, 0.0)
        if seconds > 0 and row.cost.product_flops and row.cost.nbytes:
            spots.append(
                Spot(
                    section=row.section,
                    name=name,
                    intensity=row.cost.product_flops / row.cost.nbytes,
                    rate=row.cost.product_flops / seconds,
                )
            )
    how = "at best" if times is None else "measured"
    return {
        "said": f"Product operations per second ({how}) against operations per byte, on "
        f"{machine.name}: {amount_text(peak, 'FLOP/s')}, {amount_text(machine.bandwidth, 'B/s')}.",
        "plot": roofline_plot(spots, peak=peak, bandwidth=machine.bandwidth),
    }


def _memory(memory: Facts, root: str) -> dict[str, Any]:
    highest, alive = memory["peak"], memory["peak"]["alive"]
    shown = alive[:_LARGEST_ALIVE]
    where = "at rest" if highest["call_id"] is None else f"in call {highest['call_id']}"
    return {
        "plot": memory_plot(memory),
        "said": f"The peak is {bytes_text(highest['bytes'])}, {where}, as predicted from the "
        f"program. The largest {len(shown)} of {some(len(alive), 'value')} in memory at that time:",
        "alive": [
            (bytes_text(h["bytes"]), h["role"], h["name"], plain_path(h["module"], root=root))
            for h in shown
        ],
    }


def _origin(file: Facts | None) -> list[tuple[str, Any]]:
    if file is None:
        return []
    return [
        ("file", file["path"]),
        ("bytes", count_text(file["bytes"])),
        ("format", file["format"]),
        ("digest", file["digest"]),
    ]


def _flops(cost: Facts) -> str:
    return amount_text(cost["product_flops"] + cost["other_flops"], "FLOP")


def _output(output: Facts, root: str) -> str:
    origin = f", {made_text(output['made_by'], root)}" if output["made_by"] else ""
    return f"{output['name']} {_forms([output])}{origin}"


def _forms(tensors: Sequence[Facts | None]) -> str:
    """Types and shapes of tensors; those that nobody uses are left out."""
    return " ".join(f"{t['dtype']}[{', '.join(map(str, t['shape']))}]" for t in tensors if t)
