"""What the commands of ``python -m bench`` do; :mod:`bench.__main__` parses them.

A help text loads nothing of this: the cases are torch models, and kernels are jax's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

from bench import archive, counts as counting, page, report
from bench.errors import UserGateUsage
from bench.gate import (
    GATED,
    GateSettings,
    decide,
    file_at,
    measure_in,
    tree_of,
    write_verdicts,
)
from bench.kernel_problems import kinds, title
from bench.kernels import measured
from bench.measurement import Results, check_one_processor, environment, load
from bench.models import STEP_SUITES
from bench.output import write_json, write_text
from bench.section_times import are_section_times
from bench.suites import Settings, Suite
from bench.suites.ddp import alone, ddp, overlap
from bench.suites.host import host
from bench.suites.limit import limit
from bench.suites.memory import memory
from bench.suites.sections import sections
from bench.suites.start import start
from bench.suites.steps import steps_of
from bench.suites.thunks import thunks
from bench.user_gate import compare_times, gate_pef, measure_of, of_one_tree, planted, quiet_runs
from emulator.processor import processor
from pef_schema import read_info
from pef_schema.atomic import check_outputs
from pef_schema.printable import say, say_text

__all__ = ["compare", "counts", "gate", "kernels", "results", "run", "selftest", "table"]

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        # First, so that the others find what torch.compile leaves in its cache.
        "start": start,
        "limit": limit,
        **{name: steps_of(name) for name in STEP_SUITES},
        "sections": sections,
        "thunks": thunks,
        "host": host,
        "memory": memory,
        "overlap": overlap,
        "alone": alone,
        "ddp": ddp,
    }
)
"""Suites by name, in the order they run."""


def run_suites(names: Sequence[str], settings: Settings) -> Results:
    """Run suites.

    Args:
        names: Which ones.
        settings: How much is measured.

    Returns:
        All that was found.

    Raises:
        WorkerFailed: If this project's own worker fails.
        LossesDiffer: If the contenders do not compute the same.
    """
    results = Results(
        environment=environment(settings.threads),
        settings={
            "suites": list(names),
            "cases": list(settings.cases),
            "contenders": list(settings.contenders),
            "rounds": settings.rounds,
            "round_seconds": settings.round_seconds,
            "warm_seconds": settings.warm_seconds,
        },
    )
    took = results.settings["suite_seconds"] = {}
    for name, suite in SUITES.items():
        if name in names:
            begin = time.perf_counter()
            suite(settings, results)
            took[name] = round(time.perf_counter() - begin, 1)
    return results


def run(args: argparse.Namespace) -> int:
    """Measure this project and its peers."""
    check_outputs((args.json, args.html, args.smaller_is_better))
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
        outcome = run_suites(args.suite, settings)
    say_text(report.table(outcome))
    say()
    say_text(report.goal_table({"this run": outcome}))
    took = outcome.settings["suite_seconds"]
    say_text(f"seconds by suite: {took}, together {sum(took.values()):.0f}")
    if args.json is not None:
        outcome.save(args.json)
    if args.results:
        say_text(f"kept: {archive.keep(outcome)}")
    if args.smaller_is_better is not None:
        write_json(args.smaller_is_better, report.smaller_is_better(outcome))
    if args.html is not None:
        write_text(args.html, page.page(outcome))
    return 0


def table(args: argparse.Namespace) -> int:
    """Print the table of goals for results."""
    files = {_short(path, args.results): load(path) for path in args.results}
    say_text(report.goal_table(files))
    return 0


def _short(path: Path, among: Sequence[Path]) -> str:
    """A file's name, or its path where another file has the same name."""
    return path.stem if sum(p.stem == path.stem for p in among) == 1 else str(path)


def results(_: argparse.Namespace) -> int:
    """Write the page of the kept files again."""
    say_text(f"written: {archive.write_page()}")
    return 0


def compare(args: argparse.Namespace) -> int:
    """Compare two files of results, or of section times."""
    if are_section_times(args.base) or are_section_times(args.head):
        return compare_times(args.base, args.head, across_processors=args.across_processors)
    base, head = load(args.base), load(args.head)
    if not args.across_processors:
        check_one_processor(base, head, (str(args.base), str(args.head)))
    text, slower = report.comparison(base, head)
    say_text(text)
    return int(slower)


def gate(args: argparse.Namespace) -> int:
    """Compare section times with a revision's, or of a user's PEF."""
    settings = GateSettings(
        processes=args.processes, rounds=args.rounds, threads=args.threads, plants={}
    )
    if args.pef is not None:
        return gate_pef(args, settings)
    if args.base is None or any((args.keep, args.script, args.base_script)):
        raise UserGateUsage("give --base REV, or --pef PEF with --base FILE or --keep FILE")
    check_outputs((args.json, args.smaller_is_better))
    different = counting.check() + counting.check_fused()
    say_text("\n".join(different) or "counts: as kept")
    earlier = file_at(args.base, "bench/counts.json")
    if earlier is not None:
        before = counting.parsed_counts(earlier, f"bench/counts.json at {args.base}")
        for line in counting.changes(before["cases"], counting.kept_counts()):
            say(f"since {args.base}: {line}")
    with tree_of(args.base) as base, tree_of(None) as head:
        measure = measure_in(base, head, settings)
        verdicts = [decide(case, measure, settings.processes) for case in args.model or GATED]
    for verdict in verdicts:
        say_text(str(verdict))
    write_verdicts(args, verdicts, counts=different)
    return int(bool(different) or any(v.slower for v in verdicts))


def counts(args: argparse.Namespace) -> int:
    """Compare exact counts with the kept ones."""
    if args.update:
        counting.update()
        return 0
    different = counting.check() + counting.check_fused()
    say_text("\n".join(different) or "counts: as kept")
    return int(bool(different))


def kernels(args: argparse.Namespace) -> int:
    """Time native kernels beside XLA's and torch's."""
    problems = kinds(args.only)[: args.most]
    if not problems:
        raise UserGateUsage(f"no problem has a name that contains {args.only!r}")
    os.environ["EMULATOR_CACHE"] = "0"  # a thousand executables that nobody asks for again
    say_text(f"{processor()}; GFLOP/s")
    for problem, times in measured(problems, rounds=args.rounds, seconds=args.round_seconds):
        rates = ", ".join(f"{n} {problem.operations / t / 1e9:.1f}" for n, t in times.items())
        say_text(f"{title(problem)}: {rates}")
    return 0


def selftest(args: argparse.Namespace) -> int:
    """See whether the gate does its work."""
    if args.plant is None and not args.quiet_runs:
        raise UserGateUsage("give --plant or --quiet-runs N, or both")
    settings = GateSettings(
        processes=args.processes,
        rounds=args.rounds,
        threads=args.threads,
        small=args.pef is None,
        plants={},
    )
    case, make = args.model, of_one_tree
    if args.pef is not None:
        read_info(str(args.pef))
        case, make = args.pef.name, lambda how: nullcontext(measure_of(args.pef, args.pef, how))
    good = True
    if args.plant is not None:
        section, factor = args.plant
        good &= planted(section, factor, settings, case, make, say_text)
    if args.quiet_runs:
        good &= quiet_runs(args.quiet_runs, settings, case, make, say_text)
    return int(not good)
