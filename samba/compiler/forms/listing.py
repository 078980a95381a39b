"""A description of a PEF as text for people: what comes first is what is asked most."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from emulator.costs.description import describe
from pef_schema import Role
from pef_schema.module_paths import plain_path, root_of, short_paths
from pef_schema.printable import one_line, printable, some_of
from pef_schema.program import Program
from pef_schema.program_facts import operations_text
from samba.compiler.forms.memory_text import at_the_peak
from samba.compiler.losses import losses_line
from samba.support.layout import bytes_text, count_text, paragraph, some, table

_WIDE = 120
"""Columns from which on lists have room for everything, as the ``.pef.log`` has."""
_ROWS = 40
"""Sections that the overview shows."""
_ALIVE = 8
"""Regions that are shown as alive at the peak."""
_NAMED = 12
"""Inputs, outputs and the like of a graph that are named."""
_MODULES = 120
"""Characters for the modules of a section."""
_FIRST = ("samba_version", "model")
"""Metadata that the overview shows first: what `get_pefmeta` says of every application."""
_TEXT = 160
"""Characters of a value of the metadata."""

_MORE = "python -m samba memory --alive 0 lists all"
_MEMORY = (
    "bytes: of the program's regions; at peak: memory of a full run as one executable, with its "
    "temporary values; scratch: temporary buffers of operations"
)
_LEGEND = (
    "ops: operations, those computed again for the backward pass included; bytes: memory read "
    "or written; FLOPs: floating point operations; linear:2 is two of them; a[0-3].b: module b of "
    "a[0] to a[3]"
)
_LEGEND_OF_CALLS = (
    "calls: their ids, for run_from_call_id and run_until_call_id of session.run; same as: the "
    "first section of the same structure, whose compiled code it shares"
)
_SILENT = ("", "None", "False", "[]", "()", "{}")
"""Values of the metadata that the overview leaves out: options that were not given."""

Description = Mapping[str, Any]


def overview(found: Description, *, width: int) -> str:
    """The whole of a PEF in short: sections, memory, graphs, hyperparameters, where it is from.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns of the terminal.

    Returns:
        Text of several paragraphs, without a line end at its end.
    """
    parts = [_head(found, width), section_list(found, width=width, most=_ROWS)]
    parts += [_memory(found, width)]
    parts += [_graph(graph, found, width, _NAMED) for graph in found["graphs"]]
    parts += [_optimizers(found, width), _hyperparameters(found, width), _origin(found, width)]
    parts += [paragraph(_more(found), width=width)]
    return "\n\n".join(part for part in parts if part)


def whole(found: Description, *, width: int, notes: Sequence[str] = ()) -> str:
    """The overview with nothing left out but metadata, and the nodes: the ``.pef.log``.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns.
        notes: Lines behind the first ones.
    """
    parts = [_head(found, width), "\n".join(notes), section_list(found, width=width)]
    parts += [_memory(found, width)]
    parts += [_graph(graph, found, width, None) for graph in found["graphs"]]
    parts += [_optimizers(found, width), _hyperparameters(found, width), _origin(found, width)]
    parts += [node_list(found, width=width)]
    return "\n\n".join(part for part in parts if part)


def section_list(found: Description, *, width: int, most: int | None = None) -> str:
    """The sections, each with its modules and operations.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns of the terminal.
        most: Rows to show; None for all, where there is room with their calls and twins.
    """
    sections = found["sections"]
    if not sections:
        return "no sections"
    root = model_of(found)
    called = most is None and width >= _WIDE
    extra = ("calls", "same as") if called else ()
    head = ("id", "type", "name", "ops", "bytes", "FLOPs", *extra, "modules: operations")
    rows = [
        (
            str(s["id"]),
            "+".join(s["types"]),
            s["name"],
            f"{s['ops']:,}",
            bytes_text(s["bytes"]),
            _flops(s["cost"]),
            *(_calls(s) if called else ()),
            _work(s, root),
        )
        for s in sections[:most]
    ]
    legend = f"{_LEGEND}; {_LEGEND_OF_CALLS}" if called else _LEGEND
    lines = ["sections", table(head, rows, width=width, right=(0, 3, 4, 5))]
    if len(rows) < len(sections):
        lines.append(f"and {len(sections) - len(rows):,} more: --sections lists all")
    return "\n".join([*lines, paragraph(f"({legend})", width=width)])


def _calls(section: Description) -> tuple[str, str]:
    """The calls of a section, and the first one of the same structure."""
    ids = ",".join(str(call["call_id"]) for call in section["calls"])
    return ids or "-", "-" if section["same_as"] is None else str(section["same_as"])


def node_list(found: Description, *, width: int) -> str:
    """All nodes with operation, result, module and source line.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns of the terminal.
    """
    root = model_of(found)
    folder = _folder(node["line"] for graph in found["graphs"] for node in graph["nodes"])
    parts = [f"lines are below {folder}"] if folder else []
    for graph in found["graphs"]:
        rows = [
            (
                str(node["id"]),
                node["operation"],
                ",".join(map(str, node["sections"])) or "-",
                *([node["precision"] or "-"] if width >= _WIDE else []),
                _results(node["outputs"]),
                f"{plain_path(node['module'], root=root) or '-'} "
                f"{node['line'].removeprefix(folder) or '-'}",
            )
            for node in graph["nodes"]
        ]
        title = f"nodes of graph {graph['name']}"
        if not rows:
            parts.append(f"{title}: none")
            continue
        precision = ["precision"] if width >= _WIDE else []
        head = ("id", "operation", "sections", *precision, "result", "module and line")
        parts.append(f"{one_line(title)}\n{table(head, rows, width=width, right=(0,))}")
    return "\n\n".join(paragraph(p, width=width) if "\n" not in p else p for p in parts)


def region_list(found: Description, *, width: int) -> str:
    """All regions with role, size, the calls during which they hold something, and name.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns of the terminal.
    """
    several = len(found["graphs"]) > 1
    rows = [
        (
            str(r["id"]),
            r["role"],
            _tensor(r),
            bytes_text(r["bytes"]),
            "always" if r["kept"] else _life(r["life"], several),
            r["name"],
        )
        for r in found["regions"]
    ]
    if not rows:
        return "no regions"
    return "\n".join(
        [
            "regions",
            table(
                ("id", "role", "tensor", "bytes", "calls", "name"),
                rows,
                width=width,
                right=(0, 3),
            ),
            paragraph(
                "(calls: from the first to the last call that it holds something for; always: it "
                "keeps that from run to run)",
                width=width,
            ),
        ]
    )


def metadata_list(found: Description, *, width: int) -> str:
    """All that the application stored in the file, whole.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
        width: Columns of the terminal.
    """
    lines = ["metadata"] if found["metadata"] else ["metadata: none"]
    for key, value in found["metadata"].items():
        first, *rest = value.splitlines() or [""]
        lines.append(paragraph(f"  {key}: {first}", width=width, indent="    "))
        lines += [paragraph(f"    {line}", width=width, indent="    ") for line in rest]
    return "\n".join(lines)


def _head(found: Description, width: int) -> str:
    counts, file = found["counts"], found["file"]
    kind = "inference" if found["inference"] else "training"
    lines = [f"{found['name']}: {kind}, {found['mapping']} mapping, {found['arithmetic']}"]
    lines += [
        ", ".join(
            [
                some(counts["graphs"], "graph"),
                some(counts["nodes"], "node"),
                some(counts["sections"], "section")
                + f" of {some(counts['structures'], 'structure')}",
                some(counts["regions"], "region") + f" of {bytes_text(counts['bytes'])}",
            ]
        )
    ]
    if file is not None:
        lines.append(
            f"{file['path']}: {file['bytes']:,} bytes, format {file['format']}, "
            f"digest {file['digest'][:16]}"
        )
    return "\n".join(paragraph(line, width=width, indent="  ") for line in lines)


def _memory(found: Description, width: int) -> str:
    """Bytes by role, all of them and at each graph's peak; what is alive there."""
    totals: dict[str, int] = {}
    for region in found["regions"]:
        totals[region["role"]] = totals.get(region["role"], 0) + region["bytes"]
    if not totals:
        return ""
    memories = [g["memory"] for g in found["graphs"] if g["memory"] is not None]
    many = len(memories) > 1
    at_peak: dict[str, int] = {}
    for memory in memories if not many else ():
        at_peak = Counter(memory["outside"]) + Counter(memory["peak"]["inside"])
        at_peak["scratch"] = memory["peak"]["scratch_bytes"]
    rows = [
        (
            bytes_text(totals.get(role, 0)),
            *([bytes_text(at_peak.get(role, 0))] if at_peak else []),
            role,
        )
        for role in (*(role.name.lower() for role in Role), "scratch")
        if totals.get(role) or at_peak.get(role)
    ]
    head = ("bytes", *(["at peak"] if at_peak else []), "role")
    lines = ["memory", table(head, rows, width=width, right=(0, 1) if at_peak else (0,))]
    for memory in memories:
        whose = f" of graph {memory['name']}" if many else ""
        lines.append(
            at_the_peak(
                memory, most=_ALIVE, width=width, more=_MORE, root=model_of(found), whose=whose
            )
        )
    lines.append(paragraph(f"({_MEMORY})", width=width))
    return "\n".join(filter(None, lines))


def _graph(graph: Description, found: Description, width: int, most: int | None) -> str:
    def several(items: Sequence[str]) -> str:
        return some_of(items, most)

    names = {section["id"]: section["name"] for section in found["sections"]}
    calls = [(call["call_id"], names[call["section"]]) for call in graph["schedule"]]
    root = model_of(found)
    outputs = [_output(output, root) for output in graph["outputs"]]
    rows = [
        ("inputs", several([_named(tensor) for tensor in graph["inputs"]])),
        ("outputs", several(outputs)),
        ("losses", several(graph["losses"])),
        ("state", several([update["region"] for update in graph["updates"]])),
        ("gradients", several([f"{g['name']} {g['line']}" for g in graph["gradients"]])),
        ("cost", _cost(graph["cost"])),
        ("precision", several([f"{text}: {count}" for text, count in graph["precision"].items()])),
        ("schedule", several(list(_runs(calls)))),
    ]
    lines = [paragraph(f"graph {graph['name']}: {some(len(graph['nodes']), 'node')}", width=width)]
    for what, text in rows:
        if text or what in ("inputs", "outputs", "losses"):
            line = f"  {what.ljust(10)} {text or 'none'}"
            lines.append(paragraph(line, width=width, indent=" " * 13))
    return "\n".join(lines)


def _optimizers(found: Description, width: int) -> str:
    rows = [
        (
            optimizer["name"],
            optimizer["kind"],
            some(len(optimizer["parameters"]), "parameter"),
            " ".join(f"{name}={_short(value)}" for name, value in optimizer["options"].items()),
        )
        for optimizer in found["optimizers"]
    ]
    if not rows:
        return ""
    return "optimizers\n" + table(("name", "rule", "updates", "fixed"), rows, width=width)


def _hyperparameters(found: Description, width: int) -> str:
    rows = [
        (argin["name"], argin["kind"], _short(argin["default"]))
        for argin in found["hyperparameters"]
    ]
    if not rows:
        return "hyperparameters: none"
    return "hyperparameters\n" + table(("name", "kind", "default"), rows, width=width)


def _origin(found: Description, width: int) -> str:
    """What the application stored, as far as it says something, in short."""
    said = {key: text for key, text in found["metadata"].items() if text not in _SILENT}
    lines = ["metadata" if said else "metadata: none"]
    for key, value in sorted(said.items(), key=lambda item: item[0] not in _FIRST)[:_NAMED]:
        shown = " ".join(value.split())
        if len(shown) > _TEXT:
            shown = f"{shown[:_TEXT]}... ({len(value):,} characters)"
        lines.append(paragraph(f"  {key}: {shown}", width=width, indent="    "))
    more = len(found["metadata"]) - min(len(said), _NAMED)
    if more:
        lines.append(f"and {more:,} more: --metadata lists all")
    return "\n".join(lines)


def _more(found: Description) -> str:
    counts = found["counts"]
    return (
        f"--nodes lists {some(counts['nodes'], 'node')}, --regions "
        f"{some(counts['regions'], 'region')}, --sections {some(counts['sections'], 'section')}; "
        "--json prints all of it"
    )


def _work(section: Description, root: str) -> str:
    """Modules and operations of a section; the row goes on below, so there is room for many."""
    modules = short_paths(section["modules"], root=root, width=_MODULES)
    return f"{modules}: {operations_text(section['operations'].items())}"


def _flops(cost: Description) -> str:
    total = count_text(cost["product_flops"] + cost["other_flops"])
    return f"{total}+" if cost["unknown"] else total


def _cost(cost: Description | None) -> str:
    """A full run as one executable, in one line."""
    if cost is None:
        return ""
    moved = cost["bytes_read"] + cost["bytes_written"]
    unknown = f"; without {', '.join(cost['unknown'])}" if cost["unknown"] else ""
    return f"{_flops(cost)} FLOPs, {bytes_text(moved)} read and written{unknown}"


def _tensor(item: Description) -> str:
    return f"{item['dtype']}[{','.join(map(str, item['shape']))}]"


def _named(item: Description) -> str:
    where = "" if item["region"] in (None, item["name"]) else f" in {item['region']}"
    return f"{item['name']} {_tensor(item)}{where}"


def _output(output: Description, root: str) -> str:
    """An output with what made it: its name alone is that of the last operation."""
    facts = ["loss"] if output["loss"] else []
    facts += [made_text(output["made_by"], root)] if output["made_by"] else []
    return f"{_named(output)}{' (' + ', '.join(facts) + ')' if facts else ''}"


def made_text(maker: Description, root: str) -> str:
    """What made an output, for people.

    Args:
        maker: The output's ``made_by``.
        root: The model that all modules are in.

    Example:
        >>> maker = {"operation": "linear", "module": "net__head", "line": "/home/me/net.py:17"}
        >>> made_text(maker, "net")
        'linear of head at net.py:17'
    """
    of = f" of {plain_path(maker['module'], root=root)}" if maker["module"] else ""
    at = f" at {os.path.basename(maker['line'])}" if maker["line"] else ""
    return f"{maker['operation']}{of}{at}"


def model_of(found: Description) -> str:
    """The model that all modules of a program are in, as :func:`root_of` says.

    Args:
        found: What :func:`~emulator.costs.description.describe` returned.
    """
    return root_of(node["module"] for graph in found["graphs"] for node in graph["nodes"])


def _results(outputs: Sequence[Description | None]) -> str:
    used = [_tensor(output) for output in outputs if output is not None]
    return " ".join(used[:2]) + (f" +{len(used) - 2}" if len(used) > 2 else "") or "-"


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _life(life: Sequence[Description], several: bool) -> str:
    spans = [
        (f"{one['graph']} " if several else "") + f"{one['first_call']}-{one['last_call']}"
        for one in life
    ]
    return " ".join(spans) or "never"


def _runs(calls: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Calls as ``id:name``; where numbers in names only count up or down, the first and the last.

    Example:
        >>> list(_runs([(0, "fwd_0"), (1, "fwd_1"), (2, "fwd_2"), (3, "opt")]))
        ['0-2:fwd_0..fwd_2', '3:opt']
    """
    at = 0
    while at < len(calls):
        end, step = at, 0
        while end + 1 < len(calls):
            change = _change(calls[end][1], calls[end + 1][1])
            if abs(change) != 1 or step not in (0, change):
                break
            step, end = change, end + 1
        (first, name), (last, final) = calls[at], calls[end]
        yield f"{first}:{name}" if at == end else f"{first}-{last}:{name}..{final}"
        at = end + 1


def _change(name: str, after: str) -> int:
    """By how much the number at the end of a name changes; 0 where the names are not alike."""
    stem, _, number = name.rpartition("_")
    other, _, follows = after.rpartition("_")
    if stem != other or not (number.isdecimal() and follows.isdecimal()):
        return 0
    return int(follows[:18]) - int(number[:18])


def _folder(lines: Iterable[str]) -> str:
    """The folder that all source files lie below, with a slash at its end; empty if there is none.

    Example:
        >>> _folder(["/home/me/net.py:3", "/home/me/parts/head.py:7", ""])
        '/home/me/'
    """
    folders = {os.path.dirname(line) for line in lines if line}
    if not folders or not all(map(os.path.isabs, folders)):
        return ""
    shared = os.path.commonpath(folders)
    return shared if shared.endswith("/") else f"{shared}/"


def pef_log(program: Program, digest: str = "", described: Description | None = None) -> str:
    """The ``.pef.log`` beside a PEF: what ``python -m samba inspect`` shows of it, whole.

    Args:
        program: The program.
        digest: Digest of its PEF (``PefInfo.digest``), by which the two can be told to belong
            together.
        described: What :func:`~emulator.costs.description.describe` returned; None to ask it.

    Returns:
        Text that ends with a newline; names are shown as a terminal may show them.
    """
    notes = [f"pef: {digest}" if digest else "", losses_line(program)]
    shown = describe(program) if described is None else described
    return printable(whole(shown, width=_WIDE, notes=list(filter(None, notes)))) + "\n"
