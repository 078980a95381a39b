"""``python -m samba memory``: the memory of a full run along its schedule, predicted from a PEF.

Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage, 3 the PEF is missing or bad.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from emulator.costs.schedule_memory import as_dict, schedule_memory
from pef_schema import read_pef
from pef_schema.module_paths import root_of
from samba.compiler.forms.memory_text import along_the_calls, at_the_peak, in_all
from samba.inspection.running import DONE, chosen_graph, folded_json, run_command, write_text
from samba.support.layout import paragraph, terminal_width

_ALIVE = 12
"""Rows of what is alive at the peak."""


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
        raise argparse.ArgumentTypeError(f"found {text}, expected 0 or more")
    return number


_rows.__name__ = "int"  # argparse names the type where the text is not a number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba memory",
        description="Predict the memory of a full run along its schedule: bytes by role, the peak, "
        "and the values that are alive at the peak. Nothing is compiled or run. See docs/run.md.",
        epilog="Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage (also a graph "
        "that is not there), 3 the file is missing or bad. Neither torch nor jax is loaded.",
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument("--graph", metavar="NAME", help="only this graph (default: all)")
    parser.add_argument(
        "--alive",
        metavar="N",
        type=_rows,
        default=_ALIVE,
        help=f"number of values listed at the peak (default {_ALIVE}; 0 for all)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="write to this file, not to the terminal",
    )
    return parser


def _memory(args: argparse.Namespace) -> int:
    program = read_pef(args.pef)
    graph = chosen_graph(program, args.graph, pef=args.pef)
    schedules = [i for i, s in enumerate(program.schedules) if graph in (None, s.graph)]
    memories = [schedule_memory(program, i) for i in schedules]
    described = as_dict(program, memories, pef=args.pef)
    if args.json:
        text = folded_json(described)
    else:
        root = root_of(node.module for graph in program.graphs for node in graph.nodes)
        text = _text(described, root=root, alive=args.alive, width=terminal_width())
    then = "docs/run.md says what it means"
    write_text(args.output, text, pef=args.pef, what="memory", then=then)
    return DONE


def _text(described: Mapping[str, Any], *, root: str, alive: int, width: int) -> str:
    program, graphs = described["program"], described["graphs"]
    if not graphs:
        return paragraph(f"{program}: no schedule, so nothing runs", width=width)
    return "\n\n".join(
        part
        for memory in graphs
        for part in (
            in_all(memory, program=program, width=width),
            along_the_calls(memory, width=width),
            at_the_peak(memory, most=alive, width=width, more="--alive 0 lists all", root=root),
        )
        if part
    )
