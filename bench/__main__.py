"""Measure this project and its peers, and compare results.

Exit codes: 0 done and good, 1 something is slower or differs, 2 wrong usage or it could not run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.names import CASES, SMALL, SUITES, TIMED
from bench.peers import CONTENDERS
from emulator.command_output import to_the_end
from pef_schema import PefError
from pef_schema.printable import say_text

_COLUMNS = (
    "A row has the median of base, the median of head, the median of head over base for samples "
    "taken one after the other, and the p-value of a rank test. Exit codes: 0 good, 1 a section is "
    "slower, 2 wrong usage, or it could not be measured. See docs/cost.md."
)


class _Exact(argparse.ArgumentParser):
    """Takes no part of an option's name for it: a later option might begin so, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def _parser() -> argparse.ArgumentParser:
    parser = _Exact(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure this project and its peers"))
    table = commands.add_parser("table", help="print the table of goals with results")
    table.add_argument("results", type=Path, nargs="+", help="files written by `run --json`")
    table.set_defaults(action="table")
    compare = commands.add_parser(
        "compare", help="compare two files of results, or of section times"
    )
    compare.add_argument("base", type=Path)
    compare.add_argument("head", type=Path)
    compare.add_argument(
        "--across-processors", action="store_true", help="also compare files of two processors"
    )
    compare.set_defaults(action="compare")
    page_of = commands.add_parser("results", help="rewrite the page of the kept files")
    page_of.set_defaults(action="results")
    gate = commands.add_parser(
        "gate",
        help="compare section times with those of a revision, or of a kept base",
        epilog=_COLUMNS,
    )
    gate.add_argument(
        "--base",
        metavar="REV|FILE",
        help="what to compare with: a commit, branch or tag; with --pef a PEF or a kept base",
    )
    _add_user_gate(gate)
    gate.add_argument(
        "--model",
        nargs="+",
        choices=CASES,
        metavar="CASE",
        help=f"without --pef: compare these cases of the bench: {', '.join(CASES)}",
    )
    gate.add_argument("--json", type=Path, help="write all results to this file")
    gate.add_argument(
        "--smaller-is-better", type=Path, help="write this file for github-action-benchmark"
    )
    _add_gate_settings(gate)
    gate.set_defaults(action="gate")
    exact = commands.add_parser("counts", help="compare exact counts with the kept ones")
    exact.add_argument("--update", action="store_true", help="store the current counts")
    exact.set_defaults(action="counts")
    kernels = commands.add_parser("kernels", help="time native kernels beside XLA's and torch's")
    kernels.add_argument("--rounds", type=_positive, default=5, help="rounds for each kernel")
    kernels.add_argument("--round-seconds", type=_seconds, default=0.02, help="length of a turn")
    kernels.add_argument(
        "--only", metavar="TEXT", default="", help="only problems whose name contains it"
    )
    kernels.add_argument("--most", type=_positive, help="at most this many problems")
    kernels.set_defaults(action="kernels")
    test = commands.add_parser("selftest", help="test whether the gate works")
    test.add_argument(
        "--plant",
        nargs="?",
        const=("", 1.2),
        type=_plant,
        metavar="SECTION=FACTOR",
        help="make a section slower, by default the first one by 20 %%, and expect an alarm",
    )
    test.add_argument("--quiet-runs", type=_positive, default=0, metavar="N")
    test.add_argument("--model", choices=SMALL, default="lenet", help="a small case")
    test.add_argument("--pef", type=Path, help="a PEF instead of a case")
    _add_gate_settings(test)
    test.set_defaults(action="selftest")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}, expected a number of seconds above 0")
    return value


def _plant(text: str) -> tuple[str, float]:
    section, _, factor = text.rpartition("=")
    value = float(factor)
    if not 1 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {factor}, expected a FACTOR above 1")
    return section, value


# argparse names the type where the text is not a number.
_positive.__name__, _seconds.__name__, _plant.__name__ = "int", "float", "SECTION=FACTOR"


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite", nargs="+", choices=SUITES, default=list(SUITES), help="suites to run"
    )
    parser.add_argument(
        "--model", nargs="+", choices=TIMED, default=list(TIMED), help="cases to run"
    )
    parser.add_argument(
        "--contender",
        nargs="+",
        choices=CONTENDERS,
        default=list(CONTENDERS),
        help="libraries to run",
    )
    parser.add_argument("--rounds", type=_positive, default=9, help="rounds for each contender")
    parser.add_argument("--round-seconds", type=_seconds, default=0.2, help="length of a turn")
    parser.add_argument("--warm-seconds", type=_seconds, default=0.5, help="least warm-up time")
    parser.add_argument("--threads", type=_positive, default=2, help="cores for each contender")
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument(
        "--results", action="store_true", help="keep a small file for this processor"
    )
    parser.add_argument("--html", type=Path, help="write a page with plots to this file")
    parser.add_argument(
        "--smaller-is-better", type=Path, help="write this file for github-action-benchmark"
    )
    parser.set_defaults(action="run")


def _add_user_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pef", type=Path, help="compare this PEF with --base, or keep it")
    parser.add_argument(
        "--keep", metavar="FILE", type=Path, help="with --pef: write the PEF and its times to FILE"
    )
    parser.add_argument(
        "--script",
        metavar="COMMAND",
        help="with --pef: time with this script's measure-sections, e.g. 'app.py -b 8'",
    )
    parser.add_argument(
        "--base-script",
        metavar="COMMAND",
        help="the script of --base, if its model differs from that of --script",
    )


def _add_gate_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=_positive, default=3, help="processes for each side (3)"
    )
    parser.add_argument("--rounds", type=_positive, default=12, help="samples in each process (12)")
    parser.add_argument("--threads", type=_positive, default=2, help="cores for each process (2)")


def main(argv: list[str]) -> int:
    """Run a command and return the exit status."""

    def work() -> int:
        args = _parser().parse_args(argv)
        try:
            return getattr(importlib.import_module("bench.commands"), args.action)(args)
        except (BenchError, PefError) as error:
            say_text(f"bench: {error}", file=sys.stderr)
            return 2

    return to_the_end(work, failed=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
