"""A single case, to see what it is and what becomes of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.fuzz.pool import Worker
from tests.pef_schema.fuzz.cases import Case


def try_one(target: str, program: str) -> int:
    """Command line of a target: the outcome of a case.

    Args:
        target: ``reading`` or ``run``.
        program: Name of the command, for its help.

    Returns:
        Its exit code, 1 for a find.
    """
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("case", type=Case.parse, help="KIND:SEED, such as rows:17")
    parser.add_argument("--write", type=Path, help="keep the file there")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds of a hang")
    options = parser.parse_args()
    if options.write:
        options.write.write_bytes(options.case.build())
    worker = Worker(target, deadline=options.deadline)
    try:
        (result,) = worker.tries([str(options.case)])
    finally:
        worker.close()
    outcome = result.outcome
    print(f"{'find: ' if outcome.find else ''}{outcome.label} {outcome.place}\n{outcome.text}")
    return int(outcome.find)
