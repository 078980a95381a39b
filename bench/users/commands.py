"""``python -m bench gate --pef``: the gate over a user's PEF, by itself or by the user's script."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.errors import BenchError
from bench.gate import GateSettings, Measure, Side, decide, measure_sides
from bench.tree import tree_of
from bench.users.base_file import base_pef, keep_base
from bench.users.program import case_of
from bench.users.script import measure_script
from bench.users.section_times import compared
from emulator.processor import processor
from pef_schema import read_info
from pef_schema.atomic import write_atomically
from pef_schema.printable import say_text

__all__ = ["UserGateUsage", "add_user_gate", "compare_times", "gate_pef", "measure_of"]


class UserGateUsage(BenchError):
    """Options of the gate that do not go together."""


def add_user_gate(parser: ArgumentParser) -> None:
    """Add the options of a user's gate.

    Args:
        parser: The parser of ``gate``.
    """
    parser.add_argument("--pef", type=Path, help="gate this PEF; --base is a PEF or a kept base")
    parser.add_argument(
        "--keep", metavar="FILE", type=Path, help="with --pef: write the PEF and its times here"
    )
    parser.add_argument(
        "--script",
        metavar="COMMAND",
        help="with --pef: time by this script's measure-sections, e.g. 'app.py -b 8'",
    )


def gate_pef(args: Namespace, settings: GateSettings) -> int:
    """Gate a user's PEF, or keep it as a base.

    Args:
        args: What was parsed.
        settings: How to measure.

    Returns:
        The exit code.

    Raises:
        BenchError: If something cannot be measured.
        PefError: If the PEF is missing or bad.
    """
    if (args.keep is None) == (args.base is None):
        raise UserGateUsage("gate --pef: give --base, to compare with it, or --keep, to make one")
    read_info(str(args.pef))  # a bad file is told as such, and not by a process that fails
    if args.keep is not None:
        with tree_of(None) as tree:
            side = Side(case=case_of(str(args.pef.absolute())), tree=tree)
            found = measure_sides((side, side), settings)
        keep_base(args.keep, args.pef, {name: both[1] for name, both in found.items()})
        say_text(f"kept: {args.keep}, {len(found) - 1} sections")
        return 0
    with base_pef(Path(args.base)) as base:
        measure = measure_of(base, args.pef, settings, args.script)
        verdict = decide(args.pef.name, measure, settings.processes)
    say_text(str(verdict))
    if args.json is not None:
        _write(args.json, {"processor": str(processor()), "cases": [verdict.fields()]})
    if args.smaller_is_better is not None:
        _write(args.smaller_is_better, verdict.smaller_is_better())
    return int(bool(verdict.slower))


def measure_of(
    base: Path, head: Path, settings: GateSettings, script: str | None = None
) -> Measure:
    """What measures two PEFs.

    Args:
        base, head: The PEFs.
        settings: How.
        script: The user's script with its options; None to run the PEFs by themselves.
    """
    if script is not None:
        words = shlex.split(script)
        if not words or not Path(words[0]).is_file():
            raise UserGateUsage(f"gate --script: there is no file {words[:1] or ['']}")
        return lambda _, processes: measure_script(words, base, head, settings, processes)

    def measure(_: str, processes: int) -> dict[str, tuple[list[float], list[float]]]:
        with tree_of(None) as tree:
            sides = (
                Side(case=case_of(str(base.absolute())), tree=tree),
                Side(case=case_of(str(head.absolute())), tree=tree),
            )
            return measure_sides(sides, settings, processes)

    return measure


def compare_times(base: Path, head: Path) -> int:
    """Print two reports of ``measure-sections`` side by side.

    Args:
        base, head: The reports.

    Returns:
        1 if a section counts as slower, else 0.
    """
    found, others = compared(base, head)
    for one in found:
        say_text(str(one))
    for line in others:
        say_text(line)
    say_text(
        "These times are of different minutes: what else the machine did is in them. "
        "`python -m bench gate --pef` measures both sides in turns."
    )
    return int(any(one.slower for one in found))


def _write(path: Path, what: object) -> None:
    write_atomically(str(path), [(json.dumps(what, indent=1) + "\n").encode()])
