"""Command line of the harness: ``python -m tests.opinfo``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import torch

from tests.opinfo.catalog import DTYPES, load_entries
from tests.opinfo.compiled import CHIPS
from tests.opinfo.record import Outcome, read_records
from tests.opinfo.report import page, problems, wrong
from tests.opinfo.runner import WORKERS, Job, run_jobs

RESULTS = Path("out/opinfo/results.jsonl")


def main() -> int:
    """Run entries of torch's operator database on the device."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=main.__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of JSON lines")
    parser.add_argument("--only", default="", help="regular expression on entry names")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--count", type=int, help="argument structures, instead of the cap")
    parser.add_argument("--every", type=int, default=1, help="take every n-th entry only")
    parser.add_argument("--resume", action="store_true", help="keep results that are there")
    parser.add_argument("--failed", action="store_true", help="only what did not pass before")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--chips", type=int, default=1, help="chips that divide every argument")
    parser.add_argument("--report", type=Path, help="write the coverage page of all results there")
    parser.add_argument("--no-run", action="store_true", help="only report what is known")
    options = parser.parse_args()
    os.environ[CHIPS] = str(options.chips)  # workers inherit it
    known = read_records(options.results)
    pattern = re.compile(options.only)
    jobs = [
        Job(entry=entry.name, dtype=dtype, count=options.count)
        for dtype in options.dtypes
        for entry in load_entries()[:: options.every]
        if dtype in entry.dtypes and pattern.search(entry.name)
    ]
    if options.no_run:
        jobs = []
    elif options.failed:
        bad = {
            key
            for key, r in known.items()
            if {r.forward, r.gradient} & {Outcome.FAILED, Outcome.UNSUPPORTED}
        }
        jobs = [job for job in jobs if (job.entry, job.dtype) in bad]
    elif options.resume:
        jobs = [job for job in jobs if (job.entry, job.dtype) not in known]
    elif not (options.only or options.every > 1):
        options.results.unlink(missing_ok=True)
    records = run_jobs(jobs, options.results, workers=options.workers)
    for name in ("forward", "gradient"):
        counts: dict[str, int] = {}
        for record in records:
            outcome = getattr(record, name)
            counts[outcome] = counts.get(outcome, 0) + 1
        print(name, dict(sorted((str(outcome), n) for outcome, n in counts.items())))
    if options.report is None:
        found = wrong(records)
    else:
        names = {entry.name for entry in load_entries()}
        everything = [r for r in read_records(options.results).values() if r.entry in names]
        options.report.write_text(page(everything, version=torch.__version__.split("+")[0]))
        found = problems(everything)
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
