"""``python -m bench gate --pef``: the gate over a user's PEF, by itself or by the user's script."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.errors import NothingToCompare, UserGateUsage
from bench.gate import GateSettings, Measure, Samples, Side, decide, measure_sides
from bench.measurement import FULL
from bench.output import check_outputs, write_json
from bench.tree import tree_of
from bench.users.base_file import keep_base, opened_base
from bench.users.case_name import case_of
from bench.users.same_program import matched_files
from bench.users.script import measure_script
from bench.users.section_times import compared
from emulator.processor import processor
from pef_schema import read_info
from pef_schema.printable import say_text

__all__ = ["add_user_gate", "compare_times", "gate_pef", "measure_of"]


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
    parser.add_argument(
        "--base-script",
        metavar="COMMAND",
        help="the script of --base, where its model is another than that of --script",
    )


def gate_pef(args: Namespace, settings: GateSettings) -> int:
    """Gate a user's PEF, or keep it as a base.

    Args:
        args: What was parsed.
        settings: How to measure.

    Returns:
        The exit code.

    Raises:
        BenchError: If something cannot be measured or compared.
        PefError: If the PEF is missing or bad, or an output cannot be written.
    """
    if args.model:
        raise UserGateUsage("--model is for the bench's own cases, not beside --pef")
    if (args.keep is None) == (args.base is None):
        raise UserGateUsage("beside --pef give --base, to compare with it, or --keep, to make one")
    if args.keep is not None and (args.json is not None or args.smaller_is_better is not None):
        raise UserGateUsage("--keep judges nothing: --json and --smaller-is-better go with --base")
    if args.base_script is not None and (args.script is None or args.base is None):
        raise UserGateUsage("--base-script goes with --script and --base")
    read_info(str(args.pef))  # a bad file is told as such, and not by a process that fails
    check_outputs((args.keep, args.json, args.smaller_is_better))
    return _keep(args, settings) if args.base is None else _judge(args, settings)


def _keep(args: Namespace, settings: GateSettings) -> int:
    measure = measure_of(args.pef, args.pef, settings, (args.script, args.script))
    found = measure(args.pef.name, settings.processes)
    keep_base(args.keep, args.pef, {name: [*one, *two] for name, (one, two) in found.items()})
    say_text(f"kept: {args.keep}, {args.pef.name} with {len(set(found) - {FULL})} sections")
    return 0


def _judge(args: Namespace, settings: GateSettings) -> int:
    with opened_base(Path(args.base)) as base:
        pairs = matched_files(base.pef, args.pef, name=args.base)
        scripts = args.base_script or args.script, args.script
        measure = measure_of(base.pef, args.pef, settings, scripts)

        def of_pairs(case: str, processes: int) -> Samples:
            found = measure(case, processes)
            found = {name: both for name, both in found.items() if name not in pairs.left_out}
            if not found:
                raise NothingToCompare(base=args.base, head=str(args.pef))
            return found

        verdict = decide(args.pef.name, of_pairs, settings.processes)
    say_text("\n".join([str(verdict), *pairs.lines()]))
    for found in verdict.first:
        if found.name == FULL and (line := base.since_then(found.base)):
            say_text(line)
    if args.json is not None:
        write_json(
            args.json,
            {
                "processor": str(processor()),
                "base": args.base,
                "left_out": pairs.left_out,
                "cases": [verdict.fields()],
            },
        )
    if args.smaller_is_better is not None:
        write_json(args.smaller_is_better, verdict.smaller_is_better())
    return int(bool(verdict.slower))


def measure_of(
    base: Path,
    head: Path,
    settings: GateSettings,
    scripts: tuple[str | None, str | None] = (None, None),
) -> Measure:
    """What measures two PEFs.

    Args:
        base, head: The PEFs.
        settings: How.
        scripts: The user's scripts of base and head with their options; None to run the PEFs by
            themselves.

    Returns:
        What the gate's ``decide`` asks.

    Raises:
        UserGateUsage: If there is no such script.
    """
    old, new = scripts
    if old is not None and new is not None:
        words = _words(old), _words(new)
        return lambda _, processes: measure_script(words, (base, head), settings, processes)

    def measure(_: str, processes: int) -> Samples:
        with tree_of(None) as tree:
            sides = Side(case=case_of(base), tree=tree), Side(case=case_of(head), tree=tree)
            return measure_sides(sides, settings, processes)

    return measure


def _words(script: str) -> list[str]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UserGateUsage(f"--script {script!r}: {error}") from error
    if not words or not Path(words[0]).is_file():
        raise UserGateUsage(f"--script: there is no file {words[0] if words else ''!r}")
    return words


def compare_times(base: Path, head: Path, *, across_processors: bool = False) -> int:
    """Print two files of section times side by side.

    Args:
        base, head: Reports of ``measure-sections``, or kept bases.
        across_processors: Whether they may be of two processors; nothing is called slower then.

    Returns:
        1 if a section counts as slower, else 0.

    Raises:
        BenchError: If they are something else, or of two processors.
    """
    found, others = compared(base, head, across_processors=across_processors)
    for one in found:
        say_text(str(one))
    for line in others:
        say_text(line)
    if across_processors:
        say_text("ACROSS PROCESSORS: ratios compare machines; no exit code is made of them")
        return 0
    say_text(
        "A weak verdict: these times are of different minutes, and what else the machine did is in "
        "them. `python -m bench gate --pef` measures both sides in turns."
    )
    return int(any(one.slower for one in found))
