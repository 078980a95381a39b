"""Memory along a schedule as text for people: how much, in which call, and what is alive there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pef_schema.module_paths import plain_path
from samba.support.layout import bytes_text, paragraph, table

_CALLS = 40
"""Rows of calls."""

_NOTE = (
    "bytes: the most memory in use at any time during the call, with arguments and results of the "
    "run; activation, cotangent, scratch: the parts of it that hold values, their gradients and "
    "temporary buffers of operations; predicted: a compiler may order, fuse and copy otherwise"
)

Memory = Mapping[str, Any]
"""What :func:`~emulator.costs.schedule_memory.graph_as_dict` returns."""


def in_all(memory: Memory, *, program: str, width: int) -> str:
    """The peak, what of it are arguments and results, and what else lies on the device.

    Args:
        memory: Of one graph.
        program: Name of the program.
        width: Columns of the terminal.
    """
    peak, inside = memory["peak_bytes"], memory["temp_bytes"]
    line = (
        f"graph {memory['name']} of {program}: peak {bytes_text(peak)}, "
        f"{bytes_text(peak - inside)} of arguments and results and {bytes_text(inside)} inside"
    )
    lines = [paragraph(line, width=width, indent="  ")]
    rows = [(bytes_text(size), role) for role, size in memory["outside"].items()]
    if rows:
        lines.append(table(("bytes", "arguments and results"), rows, width=width, right=(0,)))
    if untouched := memory["untouched_bytes"]:
        rest = f"and {bytes_text(untouched)} on the device that this schedule does not touch"
        lines.append(paragraph(rest, width=width))
    return "\n".join(lines)


def along_the_calls(memory: Memory, *, width: int) -> str:
    """The calls with the bytes of each at its highest moment.

    Args:
        memory: Of one graph.
        width: Columns of the terminal.
    """
    calls = memory["calls"]
    if not calls:
        return "no calls"
    rows = [
        (
            str(call["call_id"]),
            "+".join(call["types"]),
            call["name"],
            bytes_text(call["bytes"]),
            bytes_text(call["inside"].get("activation", 0)),
            bytes_text(call["inside"].get("cotangent", 0)),
            bytes_text(call["scratch_bytes"]),
        )
        for call in calls[:_CALLS]
    ]
    head = ("id", "type", "section", "bytes", "activation", "cotangent", "scratch")
    lines = ["calls", table(head, rows, width=width, right=(0, 3, 4, 5, 6))]
    if len(calls) > _CALLS:
        lines.append(paragraph(f"and {len(calls) - _CALLS:,} more: --json has all", width=width))
    return "\n".join([*lines, paragraph(f"({_NOTE})", width=width)])


def at_the_peak(
    memory: Memory, *, most: int, width: int, more: str, root: str = "", whose: str = ""
) -> str:
    """Where the peak is, and the largest that is alive there; empty where nothing is computed.

    Args:
        memory: Of one graph.
        most: Rows of what is alive; 0 for all.
        width: Columns of the terminal.
        more: What lists the others.
        root: The model that all modules are in.
        whose: What to say behind the word ``peak``: of which graph it is.
    """
    peak = memory["peak"]
    if peak["call_id"] is None:
        return ""
    names = {call["call_id"]: call["name"] for call in memory["calls"]}
    if peak["operation"]:
        what = f"{'gradient of ' if peak['backward'] else ''}{peak['operation']}"
    else:
        what = "a sum of gradients" if peak["backward"] else "an update"
    where = f" in {plain_path(peak['module'], root=root)}" if peak["module"] else ""
    at = f" at {_short(peak['line'])}" if peak["line"] else ""
    title = (
        f"peak{whose}: {bytes_text(peak['bytes'])} in call {peak['call_id']} "
        f"({names[peak['call_id']]}), while it computes {what}{where}{at}"
    )
    alive = peak["alive"]
    shown = alive[:most] if most else alive
    rows = [
        (
            bytes_text(entry["bytes"]),
            entry["role"],
            entry["name"],
            " ".join(filter(None, (plain_path(entry["module"], root=root), _short(entry["line"]))))
            or "-",
        )
        for entry in shown
    ]
    lines = [paragraph(title, width=width, indent="  ")]
    lines.append(table(("alive", "role", "name", "module and line"), rows, width=width, right=(0,)))
    if len(shown) < len(alive):
        lines.append(paragraph(f"and {len(alive) - len(shown):,} more: {more}", width=width))
    return "\n".join(lines)


def _short(line: str) -> str:
    """A line of the source without the folders before it."""
    return line.rpartition("/")[2]
