"""``python -m samba report``: one page about a PEF, for a person."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from emulator.costs.description import describe
from emulator.costs.machine_file import BadMachineFile, read_machine
from pef_schema import read_info, read_pef
from pef_schema.printable import say_text
from samba.inspection.running import BAD_FILE, DONE, chosen_graph, run_command, write_output
from samba.reporting.page import Times, page
from samba.reporting.section_times import BadTimes, section_seconds
from samba.support.layout import bytes_text

__all__ = ["run"]

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
        prog="python -m samba report",
        description="Write one self-contained page about a PEF: its graph, which folds by module, "
        "its sections along time, roofline, memory along the schedule, settings and origin.",
        epilog=_EPILOG,
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the page, e.g. report.html"
    )
    parser.add_argument("--graph", metavar="NAME", help="this graph alone")
    parser.add_argument(
        "--times",
        "--timeline",
        dest="times",
        metavar="FILE",
        help="measured times: what measure-sections --json wrote, or a timeline",
    )
    parser.add_argument(
        "--machine", metavar="FILE.toml", help="hold it against a machine, see docs/cost.md"
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
            known = {section.name for section in program.sections}
            times = Times(source=args.times, seconds=section_seconds(args.times, known))
    except (BadMachineFile, BadTimes) as error:
        say_text(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    facts = describe(program, read_info(args.pef), graph=index)
    data = page(program, facts, machine=machine, times=times).encode()
    write_output(args.output, data, inputs=inputs)
    if args.output != "-":
        say_text(f"{args.output}: {bytes_text(len(data))}")
    return DONE
