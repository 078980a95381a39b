"""``python -m samba report``: one page about a PEF, for a person; times of sections from files."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.costs.description import describe
from emulator.costs.machine_file import BadMachineFile, read_machine
from pef_schema import read_info, read_pef
from pef_schema.errors import SambaError, quoted
from pef_schema.printable import say_text
from pef_schema.program_facts import modules_of, owners
from samba.inspection.running import BAD_FILE, DONE, chosen_graph, run_command, write_output
from samba.reporting.page import Times, page
from samba.support.strict_json import NotJson, parse_json

_LARGEST = 1 << 28
"""Bytes of a file of times."""
_TRACK = "sections"


class BadTimes(SambaError):
    """A file does not hold times of sections.

    Args:
        path: The file.
        problem: What was found and what was wanted, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{quoted(path, 1024)}: {problem} The times of a PEF are written by its script: "
            "measure-sections --bench-report-json FILE, or run --timeline FILE."
        )


def section_seconds(path: str, known: Mapping[str, Collection[str]]) -> dict[str, float]:
    """The median time of a call by the section's name.

    Args:
        path: What ``measure-sections --json`` wrote, or a Chrome trace whose events of the track
            ``sections`` carry the section's name.
        known: The modules of the program's sections by name.

    Returns:
        Seconds by name; sections that the file does not have are missing.

    Raises:
        BadTimes: If the file is missing, something else, or of another program.
    """
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise BadTimes(path=path, problem=f"it has over {_LARGEST:,} bytes.")
        content = parse_json(Path(path).read_bytes())
    except OSError as error:
        raise BadTimes(path=path, problem=f"it cannot be read: {error.strerror}.") from None
    except NotJson as error:
        raise BadTimes(path=path, problem=f"it cannot be read: {error}.") from None
    times, modules = _of_rows(content) if isinstance(content, list) else _of_trace(content)
    if not times:
        raise BadTimes(path=path, problem="it holds no times of sections.")
    named = {name: seconds for name, seconds in times.items() if name in known}
    if not named:
        raise BadTimes(
            path=path, problem="it belongs to another program: it has no section of this PEF."
        )
    for name in named:
        if name in modules and modules[name] != set(known[name]):
            raise BadTimes(
                path=path,
                problem=f"its section {quoted(name)} has other modules than in this PEF: it "
                "belongs to another program, or to this one compiled with other options.",
            )
    return named


_Found = tuple[dict[str, float], dict[str, set[str]]]
"""Seconds of sections by name, and the modules of those of which the file tells them."""


def _of_rows(rows: list[Any]) -> _Found:
    entries = [
        row
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and _is_time(row.get("median_ms"))
    ]
    return {row["name"]: row["median_ms"] / 1e3 for row in entries}, {
        row["name"]: set(row["modules"]) for row in entries if _are_texts(row.get("modules"))
    }


def _of_trace(trace: Any) -> _Found:
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    spent: dict[str, list[float]] = {}
    modules: dict[str, set[str]] = {}
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") != _TRACK:
            continue
        if isinstance(event.get("name"), str) and _is_time(event.get("dur")):
            spent.setdefault(event["name"], []).append(event["dur"] / 1e6)
            facts = event.get("args")
            if isinstance(facts, dict) and _are_texts(facts.get("modules")):
                modules[event["name"]] = set(facts["modules"])
    return {name: sorted(times)[len(times) // 2] for name, times in spent.items()}, modules


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


_EPILOG = (
    "Exit codes: 0 done, 1 the page cannot be written, 2 wrong usage (also a graph that is not "
    "there), 3 a file is missing or bad. Neither torch nor jax is loaded. See docs/program.md."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those that follow ``report``.

    Returns:
        The exit code.
    """
    return run_command(lambda: _report(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba report",
        description="Write a self-contained HTML page about a PEF: its graph, which can be folded "
        "by module, the times of its sections, a roofline plot, memory along the schedule, "
        "settings and origin.",
        epilog=_EPILOG,
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write, e.g. report.html"
    )
    parser.add_argument("--graph", metavar="NAME", help="only this graph")
    parser.add_argument(
        "--times",
        "--timeline",
        dest="times",
        metavar="FILE",
        help="measured times of this PEF: a file of measure-sections --bench-report-json, or a "
        "timeline",
    )
    parser.add_argument(
        "--machine", metavar="FILE.toml", help="compare with this machine, see docs/cost.md"
    )
    return parser


def _report(args: argparse.Namespace) -> int:
    program = read_pef(args.pef)
    index = chosen_graph(program, args.graph, pef=args.pef)
    inputs = {"the PEF": args.pef}
    try:
        machine = None if args.machine is None else read_machine(args.machine)
        times = None
        if args.times is not None:
            inputs["the file of times"] = args.times
            owned = owners(program)
            known = {s.name: modules_of(program, s, owned) for s in program.sections}
            times = Times(source=args.times, seconds=section_seconds(args.times, known))
    except (BadMachineFile, BadTimes) as error:
        say_text(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    facts = describe(program, read_info(args.pef), graph=index)
    data = page(program, facts, machine=machine, times=times).encode()
    write_output(args.output, data, inputs=inputs, what="report", then="open it in a browser")
    return DONE
