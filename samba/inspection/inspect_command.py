"""``python -m samba inspect``: what a PEF holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from emulator.costs.description import describe
from pef_schema import read_info, read_pef
from samba.compiler.forms.listing import (
    metadata_list,
    node_list,
    overview,
    region_list,
    section_list,
)
from samba.inspection.running import chosen_graph, folded_json, run_command, write_text
from samba.support.layout import terminal_width

_EPILOG = (
    "Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage (also a graph that "
    "is not there), 3 the file is missing or bad. Neither torch nor jax is loaded."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those that follow ``inspect``.

    Returns:
        The exit code.
    """
    return run_command(lambda: _inspect(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba inspect",
        description="Show what a PEF contains: sections with their modules and operations, memory "
        "and its peak, graphs, hyperparameters and origin. See docs/program.md.",
        epilog=_EPILOG,
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument(
        "--graph", metavar="NAME", help="only this graph and everything that it uses"
    )
    parser.add_argument("--sections", action="store_true", help="list all sections")
    parser.add_argument(
        "--nodes", action="store_true", help="list all nodes with their source lines"
    )
    parser.add_argument(
        "--regions", action="store_true", help="list all memory regions with their lifetimes"
    )
    parser.add_argument("--metadata", action="store_true", help="list all metadata, not shortened")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="write to this file, not to the terminal",
    )
    return parser


def _inspect(args: argparse.Namespace) -> int:
    program = read_pef(args.pef)
    index = chosen_graph(program, args.graph, pef=args.pef)
    description = describe(program, read_info(args.pef), graph=index)
    if args.json:
        text = folded_json(description)
    else:
        width = terminal_width()
        lists = (
            (args.sections, section_list),
            (args.nodes, node_list),
            (args.regions, region_list),
            (args.metadata, metadata_list),
        )
        chosen = [make(description, width=width) for flag, make in lists if flag]
        text = "\n\n".join(chosen) or overview(description, width=width)
    then = "docs/program.md says what it means"
    write_text(args.output, text, pef=args.pef, what="inspection", then=then)
    return 0
