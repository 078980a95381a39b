"""The command line: ``python -m bench run [--model NAME ...] [--rounds N] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import report
from bench.errors import BenchError
from bench.models import CASES
from bench.peers import CONTENDERS
from bench.run import run_case


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Time training steps.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="time this project against its peers")
    run.add_argument("--model", nargs="+", choices=CASES, default=list(CASES), help="cases")
    run.add_argument(
        "--contender", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who runs"
    )
    run.add_argument("--rounds", type=int, default=11, help="turns of each contender")
    run.add_argument("--round-seconds", type=float, default=0.5, help="length of a turn")
    run.add_argument("--warm-seconds", type=float, default=1.0, help="warming up, at least")
    run.add_argument("--threads", type=int, default=2, help="cores for each contender")
    run.add_argument("--json", type=Path, help="write all numbers here")
    return parser


def main(argv: list[str]) -> int:
    """Run a command and return the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    for option in ("rounds", "threads"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1")
    settings = {
        "rounds": args.rounds,
        "round_seconds": args.round_seconds,
        "warm_seconds": args.warm_seconds,
    }
    results = []
    for case in args.model:
        print(f"{case} ...", file=sys.stderr, flush=True)
        try:
            results.append(run_case(case, args.contender, threads=args.threads, **settings))
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print(report.table(results))
    if args.json is not None:
        found = report.to_json(results, threads=args.threads, settings=settings)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
