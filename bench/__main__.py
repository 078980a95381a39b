"""The command line: ``python -m bench {run,table,results,compare,gate,counts,selftest,kernels}``.

Exit codes: 0 done and good, 1 something is slower or differs, 2 wrong usage or it could not run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import archive, counts, page, report, selftest
from bench.environment import check_one_processor
from bench.errors import BenchError, UserGateUsage
from bench.gate import GATED, GateSettings, decide, measure_in
from bench.kernels.timing import kinds, measured, title
from bench.measurement import load
from bench.models import CASES, SMALL, TIMED
from bench.output import check_outputs, write_json, write_text
from bench.peers import CONTENDERS
from bench.run import SUITES, run
from bench.section_times import are_section_times
from bench.suites import Settings
from bench.tree import file_at, tree_of
from bench.user_gate import add_user_gate, compare_times, gate_pef
from emulator.processor import processor
from pef_schema import PefError, read_info
from pef_schema.printable import say, say_text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure this project and its peers"))
    table = commands.add_parser("table", help="print the table of goals for results")
    table.add_argument("results", type=Path, nargs="+", help="what `run --json` wrote")
    table.set_defaults(action=_table)
    compare = commands.add_parser(
        "compare", help="compare two files of results, or of section times"
    )
    compare.add_argument("base", type=Path)
    compare.add_argument("head", type=Path)
    compare.add_argument(
        "--across-processors", action="store_true", help="compare files of two processors, too"
    )
    compare.set_defaults(action=_compare)
    page_of = commands.add_parser("results", help="write the page of the kept files anew")
    page_of.set_defaults(action=_results)
    gate = commands.add_parser("gate", help="compare section times with a revision's")
    gate.add_argument(
        "--base", metavar="REV|FILE", help="commit, branch or tag; with --pef a PEF or a kept base"
    )
    add_user_gate(gate)
    gate.add_argument("--model", nargs="+", choices=CASES, help="cases")
    gate.add_argument("--json", type=Path, help="write all that was found here")
    gate.add_argument(
        "--smaller-is-better", type=Path, help="write github-action-benchmark's array here"
    )
    _add_gate_settings(gate)
    gate.set_defaults(action=_gate)
    exact = commands.add_parser("counts", help="compare exact counts with the kept ones")
    exact.add_argument("--update", action="store_true", help="keep the present ones")
    exact.set_defaults(action=_counts)
    kernels = commands.add_parser("kernels", help="time native kernels beside XLA's and torch's")
    kernels.add_argument("--rounds", type=_positive, default=5, help="turns of each kernel")
    kernels.add_argument("--round-seconds", type=_seconds, default=0.02, help="length of a turn")
    kernels.add_argument("--only", metavar="TEXT", default="", help="problems that hold it")
    kernels.add_argument("--most", type=_positive, help="so many problems, and no more")
    kernels.set_defaults(action=_kernels)
    test = commands.add_parser("selftest", help="see whether the gate does its work")
    test.add_argument(
        "--plant",
        nargs="?",
        const=("", 1.2),
        type=_plant,
        metavar="SECTION=FACTOR",
        help="make a section slower, the first one by 20 %% unless told, and expect an alarm",
    )
    test.add_argument("--quiet-runs", type=_positive, default=0, metavar="N")
    test.add_argument("--model", choices=SMALL, default="lenet", help="a small case")
    test.add_argument("--pef", type=Path, help="a user's PEF in its place")
    _add_gate_settings(test)
    test.set_defaults(action=_selftest)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def _plant(text: str) -> tuple[str, float]:
    section, _, factor = text.rpartition("=")
    value = float(factor)
    if not 1 < value < float("inf"):
        raise argparse.ArgumentTypeError("FACTOR must be a number above 1")
    return section, value


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="suites")
    parser.add_argument("--model", nargs="+", choices=TIMED, default=list(TIMED), help="cases")
    parser.add_argument(
        "--contender", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who runs"
    )
    parser.add_argument("--rounds", type=_positive, default=9, help="turns of each contender")
    parser.add_argument("--round-seconds", type=_seconds, default=0.2, help="length of a turn")
    parser.add_argument("--warm-seconds", type=_seconds, default=0.5, help="warming up, at least")
    parser.add_argument("--threads", type=_positive, default=2, help="cores for each contender")
    parser.add_argument("--quick", action="store_true", help="a look: few and short turns")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument(
        "--results", action="store_true", help="keep a small file for this processor"
    )
    parser.add_argument("--html", type=Path, help="write a page with plots here")
    parser.add_argument("--history", type=Path, help="add medians to this file; the page plots it")
    parser.add_argument(
        "--smaller-is-better", type=Path, help="write github-action-benchmark's array here"
    )
    parser.set_defaults(action=_run)


def _add_gate_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=_positive, default=3, help="of each side")
    parser.add_argument("--rounds", type=_positive, default=12, help="samples a process")
    parser.add_argument("--threads", type=_positive, default=2, help="cores a process")


def _run(args: argparse.Namespace) -> int:
    check_outputs((args.json, args.html, args.history, args.smaller_is_better))
    with tempfile.TemporaryDirectory(prefix="bench-") as caches:
        settings = Settings(
            cases=args.model,
            contenders=args.contender,
            rounds=2 if args.quick else args.rounds,
            round_seconds=0.05 if args.quick else args.round_seconds,
            warm_seconds=0.1 if args.quick else args.warm_seconds,
            threads=args.threads,
            quick=args.quick,
            caches=Path(caches),
            tell=lambda text: say_text(text, file=sys.stderr),
        )
        results = run(args.suite, settings)
    say_text(report.table(results))
    say()
    say_text(report.goal_table({"this run": results}))
    took = results.settings["suite_seconds"]
    say_text(f"seconds by suite: {took}, together {sum(took.values()):.0f}")
    past = []
    if args.history is not None:
        archive.add_to_history(args.history, results)
        past = archive.load_history(args.history)
    if args.json is not None:
        results.save(args.json)
    if args.results:
        say_text(f"kept: {archive.keep(results)}")
    if args.smaller_is_better is not None:
        write_json(args.smaller_is_better, report.smaller_is_better(results))
    if args.html is not None:
        write_text(args.html, page.page(results, past))
    return 0


def _table(args: argparse.Namespace) -> int:
    files = {_short(path, args.results): load(path) for path in args.results}
    say_text(report.goal_table(files))
    return 0


def _short(path: Path, among: Sequence[Path]) -> str:
    """A file's name, or its path where another file has the same name."""
    return path.stem if sum(p.stem == path.stem for p in among) == 1 else str(path)


def _results(_: argparse.Namespace) -> int:
    say_text(f"written: {archive.write_page()}")
    return 0


def _compare(args: argparse.Namespace) -> int:
    if are_section_times(args.base) or are_section_times(args.head):
        return compare_times(args.base, args.head, across_processors=args.across_processors)
    base, head = load(args.base), load(args.head)
    if not args.across_processors:
        check_one_processor(base, head, (str(args.base), str(args.head)))
    text, slower = report.comparison(base, head)
    say_text(text)
    return int(slower)


def _gate(args: argparse.Namespace) -> int:
    settings = GateSettings(
        processes=args.processes, rounds=args.rounds, threads=args.threads, plants={}
    )
    if args.pef is not None:
        return gate_pef(args, settings)
    if args.base is None or any((args.keep, args.script, args.base_script)):
        raise UserGateUsage("give --base REV, or --pef PEF with --base FILE or --keep FILE")
    check_outputs((args.json, args.smaller_is_better))
    different = counts.check() + counts.check_fused()
    say_text("\n".join(different) or "counts: as kept")
    earlier = file_at(args.base, "bench/counts.json")
    if earlier is not None:
        before = counts.parsed_counts(earlier, f"bench/counts.json at {args.base}")
        for line in counts.changes(before["cases"], counts.kept_counts()):
            say(f"since {args.base}: {line}")
    with tree_of(args.base) as base, tree_of(None) as head:
        measure = measure_in(base, head, settings)
        verdicts = [decide(case, measure, settings.processes) for case in args.model or GATED]
    for verdict in verdicts:
        say_text(str(verdict))
    if args.json is not None:
        data = {
            "processor": str(processor()),
            "counts": different,
            "cases": [verdict.fields() for verdict in verdicts],
        }
        write_json(args.json, data)
    if args.smaller_is_better is not None:
        array = [entry for verdict in verdicts for entry in verdict.smaller_is_better()]
        write_json(args.smaller_is_better, array)
    return int(bool(different) or any(v.slower for v in verdicts))


def _counts(args: argparse.Namespace) -> int:
    if args.update:
        counts.update()
        return 0
    different = counts.check() + counts.check_fused()
    say_text("\n".join(different) or "counts: as kept")
    return int(bool(different))


def _kernels(args: argparse.Namespace) -> int:
    os.environ["EMULATOR_CACHE"] = "0"  # a thousand executables that nobody asks for again
    say_text(f"{processor()}; GFLOP/s")
    wanted = kinds(args.only)[: args.most]
    for problem, times in measured(wanted, rounds=args.rounds, seconds=args.round_seconds):
        rates = ", ".join(f"{n} {problem.operations / t / 1e9:.1f}" for n, t in times.items())
        say_text(f"{title(problem)}: {rates}")
    return 0


def _selftest(args: argparse.Namespace) -> int:
    if args.plant is None and not args.quiet_runs:
        raise UserGateUsage("give --plant or --quiet-runs N, or both")
    settings = GateSettings(
        processes=args.processes,
        rounds=args.rounds,
        threads=args.threads,
        small=args.pef is None,
        plants={},
    )
    case, make = args.model, selftest.of_one_tree
    if args.pef is not None:
        read_info(str(args.pef))
        case, make = args.pef.name, selftest.of_pef(args.pef)
    good = True
    if args.plant is not None:
        section, factor = args.plant
        good &= selftest.planted(section, factor, settings, case, make, say_text)
    if args.quiet_runs:
        good &= selftest.quiet_runs(args.quiet_runs, settings, case, make, say_text)
    return int(not good)


def main(argv: list[str]) -> int:
    """Run a command and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return args.action(args)
    except (BenchError, PefError) as error:
        say_text(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
