"""Everything that is fuzzed, in one go: ``python -m tests.fuzz``; ``make fuzz`` runs it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.outcome import ROOT

_NOT_DONE = "not all cases were tried in the minutes given"


def main(argv: Sequence[str] | None = None) -> int:
    """Try damaged files on the reader and on the device, and drawn arguments on the operations."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--readings", type=int, default=0, help="files to read")
    parser.add_argument("--runs", type=int, default=0, help="programs to run on the device")
    parser.add_argument("--op-cases", type=int, default=0, help="cases of each operation")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other cases")
    parser.add_argument("--minutes", type=float, help="begin nothing after so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--corpus", type=Path, help="folder of what is kept: corpus and finds")
    options = parser.parse_args(argv)
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    lines: list[str] = []
    failed = False
    for target, count, share in (("reading", options.readings, 0.4), ("run", options.runs, 0.7)):
        if not count:
            continue
        campaign = Campaign(target=target, folder=options.corpus)
        lines += campaign.go(
            count,
            seed=options.seed,
            workers=options.workers,
            until=float("inf") if end is None else _part(share, end),
            tell=True,
        )
        print(campaign.table(), flush=True)
        if campaign.counts.total() < count:
            print(f"{target}: {_NOT_DONE}: {campaign.counts.total()} of {count}")
    if options.op_cases:
        failed = _operations(options, end)
    print(*lines, sep="\n")
    return int(bool(lines) or failed)


def _operations(options: argparse.Namespace, end: float | None) -> bool:
    """Try drawn arguments on every operation; return whether something was found."""
    command = [sys.executable, "-m", "tests.emulator.fuzz.ops"]
    command += ["--cases", str(options.op_cases), "--seed", str(options.seed)]
    if end is not None:
        command += ["--seconds", str(max(60.0, end - time.monotonic()))]
    parts = [
        subprocess.Popen([*command, "--part", f"{i}/{options.workers}"], cwd=ROOT)
        for i in range(options.workers)
    ]
    codes = [part.wait() for part in parts]
    return any(codes)


def _part(share: float, end: float) -> float:
    """When so large a share of the time that is left will be over."""
    now = time.monotonic()
    return now + share * (end - now)


if __name__ == "__main__":
    sys.exit(main())
