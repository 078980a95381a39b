"""``python -m samba memory``: the memory of a full run along its schedule, predicted from a PEF.

Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage, 3 the PEF is missing or bad.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from emulator.costs.schedule_memory import Places, ScheduleMemory, as_dict, schedule_memory
from pef_schema import read_pef
from pef_schema.printable import printable, say_text
from pef_schema.program import Program, Role
from pef_schema.section_facts import section_types
from samba.inspection.json_form import folded_json
from samba.inspection.running import DONE, chosen_graph, run_command, write_output
from samba.support.layout import bytes_text, paragraph, table, terminal_width

__all__ = ["run"]

_ALIVE = 12
"""Rows of what is alive at the peak."""
_CALLS = 40
"""Rows of calls."""

_NOTE = (
    "bytes: most at any time during the call, arguments and results of the run included; "
    "activation, cotangent, scratch: of these, values, their gradients, and what operations take "
    "beside them, inside the executable at that time; predicted: compilers order, fuse and copy as "
    "they see fit"
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those that follow ``memory``.

    Returns:
        The exit code.
    """
    return run_command(lambda: _memory(_parser().parse_args(arguments)))


def _rows(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"found {text}, wanted 0 or more")
    return number


_rows.__name__ = "int"  # argparse names the type where the text is no number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m samba memory",
        description="Predict the memory of a full run along its schedule: bytes by role, the peak, "
        "and what is alive there. Nothing is compiled or run. See docs/run.md.",
        epilog="Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage (also a graph "
        "that is not there), 3 the file is missing or bad. Neither torch nor jax is loaded.",
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument("--graph", metavar="NAME", help="this graph alone; all if not given")
    parser.add_argument(
        "--alive",
        metavar="N",
        type=_rows,
        default=_ALIVE,
        help=f"rows of what is alive at the peak (default {_ALIVE}; 0 for all)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="write there, not to the terminal"
    )
    return parser


def _memory(args: argparse.Namespace) -> int:
    program = read_pef(args.pef)
    graph = chosen_graph(program, args.graph, pef=args.pef)
    schedules = [i for i, s in enumerate(program.schedules) if graph in (None, s.graph)]
    found = [schedule_memory(program, i) for i in schedules]
    if args.json:
        text = folded_json(as_dict(program, found, pef=args.pef))
    else:
        text = _text(program, found, alive=args.alive, width=terminal_width())
    if args.output == "-":
        say_text(text)
    else:
        write_output(args.output, (printable(text) + "\n").encode(), inputs={"the PEF": args.pef})
    return DONE


def _text(program: Program, found: Sequence[ScheduleMemory], *, alive: int, width: int) -> str:
    if not found:
        return paragraph(f"{program.name}: no schedule, so nothing runs", width=width)
    places = Places(program)
    return "\n\n".join(
        part
        for one in found
        for part in (
            _head(program, one, width),
            _calls(program, one, width),
            _peak(program, one, places, alive, width),
        )
        if part
    )


def _head(program: Program, one: ScheduleMemory, width: int) -> str:
    need = one.need
    lines = [
        f"graph {one.graph} of {program.name}: peak {bytes_text(need.peak)}, "
        f"{bytes_text(need.peak - need.temp)} of arguments and results and "
        f"{bytes_text(need.temp)} inside"
    ]
    text = "\n".join(paragraph(line, width=width, indent="  ") for line in lines)
    rows = [(bytes_text(size), role.name.lower()) for role, size in need.outside]
    if rows:
        text += "\n" + table(("bytes", "arguments and results"), rows, width=width, right=(0,))
    if one.untouched:
        rest = f"and {bytes_text(one.untouched)} on the device that this schedule does not touch"
        text += "\n" + paragraph(rest, width=width)
    return text


def _calls(program: Program, one: ScheduleMemory, width: int) -> str:
    if not one.calls:
        return "no calls"
    need, rows = one.need, []
    base = need.peak - need.temp
    for call in one.calls[:_CALLS]:
        moment = need.moments[call.highest] if call.highest >= 0 else None
        inside = {} if moment is None else dict(moment.inside)
        section = program.sections[call.section]
        rows.append(
            (
                str(call.call_id),
                section_types(section),
                section.name,
                bytes_text(base + (0 if moment is None else moment.total)),
                bytes_text(inside.get(Role.ACTIVATION, 0)),
                bytes_text(inside.get(Role.COTANGENT, 0)),
                bytes_text(0 if moment is None else moment.scratch),
            )
        )
    head = ("id", "type", "section", "bytes", "activation", "cotangent", "scratch")
    lines = ["calls", table(head, rows, width=width, right=(0, 3, 4, 5, 6))]
    if len(one.calls) > _CALLS:
        rest = f"and {len(one.calls) - _CALLS:,} more: --json has all"
        lines.append(paragraph(rest, width=width))
    return "\n".join([*lines, paragraph(f"({_NOTE})", width=width)])


def _peak(program: Program, one: ScheduleMemory, places: Places, most: int, width: int) -> str:
    need = one.need
    call = one.call_at(need.highest)
    if call is None:
        return ""
    moment = need.moments[need.highest]
    operation, module, line = places.at(moment)
    what = f"{'gradient of ' if moment.backward else ''}{operation}" if operation else "an update"
    if moment.backward and not operation:
        what = "a sum of gradients"
    where = f" in {module}" if module else ""
    at = f" at {_short(line)}" if line else ""
    name = program.sections[call.section].name
    title = (
        f"peak: {bytes_text(need.peak)} in call {call.call_id} ({name}), while it computes "
        f"{what}{where}{at}"
    )
    alive = need.alive(program, need.highest)
    shown = alive[:most] if most else alive
    rows = []
    for held in shown:
        module, line = places.of(held)
        place = " ".join(filter(None, (module, _short(line)))) or "-"
        rows.append((bytes_text(held.nbytes), held.role.name.lower(), held.name, place))
    lines = [paragraph(title, width=width, indent="  ")]
    lines.append(table(("alive", "role", "name", "module and line"), rows, width=width, right=(0,)))
    if len(shown) < len(alive):
        rest = f"and {len(alive) - len(shown):,} more: --alive 0 lists all"
        lines.append(paragraph(rest, width=width))
    return "\n".join(lines)


def _short(line: str) -> str:
    """A line of the source without the folders before it."""
    return line.rpartition("/")[2]
