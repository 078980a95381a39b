"""Everything that is fuzzed, in one go: ``python -m tests.fuzz``; ``make fuzz`` runs it.

``python -m tests.fuzz reading rows:17`` reads a single file, and ``run sound:17`` in its place runs
one on the device, ``op aten.add.Tensor:3`` calls an operation.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.emulator.fuzz.op_cases import drawn_ops
from tests.fuzz.campaign import Campaign, try_ops
from tests.fuzz.pool import Worker
from tests.fuzz.worker import TARGETS
from tests.pef_schema.fuzz.cases import Case
from tests.processes import FAST_XLA

_NOT_DONE = "not all cases were tried in the minutes given"


def main(argv: Sequence[str] | None = None) -> int:
    """Try damaged files on the reader and on the device, and drawn arguments on the operations."""
    # For the processes that try cases, which are forked from others that this one starts.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", FAST_XLA)
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in TARGETS:
        return _try_one(words)
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--readings", type=int, default=0, help="files to read")
    parser.add_argument("--runs", type=int, default=0, help="programs to run on the device")
    parser.add_argument("--op-cases", type=int, default=0, help="cases of each operation")
    parser.add_argument("--op", action="append", help="this operation alone; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other cases")
    parser.add_argument("--minutes", type=float, help="begin nothing after so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--corpus", type=Path, help="folder of what is kept: corpus and finds")
    options = parser.parse_args(words)
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    lines: list[str] = []
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
        lines += _operations(options, float("inf") if end is None else end)
    print(*lines, sep="\n")
    return int(bool(lines))


def _try_one(words: Sequence[str]) -> int:
    """Print what becomes of a single case; 1 for a find."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("case", help="KIND:SEED, such as rows:17; OP:SEED for an operation")
    parser.add_argument("--write", type=Path, help="keep the file there")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds of a hang")
    options = parser.parse_args(words)
    if options.write:
        options.write.write_bytes(Case.parse(options.case).build())
    with closing(Worker(options.target, deadline=options.deadline)) as worker:
        (result,) = worker.tries([options.case])
    outcome = result.outcome
    print(f"{'find: ' if outcome.find else ''}{outcome.label} {outcome.place}\n{outcome.text}")
    return int(outcome.find)


def _operations(options: argparse.Namespace, until: float) -> list[str]:
    """Try drawn arguments on every operation; a line for each find."""
    seeds = range(options.seed, options.seed + options.op_cases)
    cases = [f"{op}:{seed}" for seed in seeds for op in options.op or drawn_ops()]
    results = try_ops(cases, workers=options.workers, until=until)
    counts = Counter(result.outcome.label for result in results)
    listed = ", ".join(f"{n} {label}" for label, n in counts.most_common())
    print(f"{len(results)} of {len(cases)} calls: {listed}")
    return [
        f"{r.outcome.label}: python -m tests.fuzz op {r.case}  # {r.outcome.text[-200:]!r}"
        for r in results
        if r.outcome.find
    ]


def _part(share: float, end: float) -> float:
    """When so large a share of the time that is left will be over."""
    now = time.monotonic()
    return now + share * (end - now)


if __name__ == "__main__":
    sys.exit(main())
