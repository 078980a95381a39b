"""Many entries in worker processes: a limit on the time of each, results on disk as they come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import outcome
from tests.fuzz.pool import Result, Worker, try_all
from tests.opinfo.record import Outcome, Record, from_line, to_line

WORKERS = 2
LIMIT_SECONDS = 240.0
"""For one entry and dtype, compiling included; a worker that takes longer is ended."""
JOBS_PER_WORKER = 250
"""A worker is replaced after that many, since executables stay in memory."""
SPARE = 2**40
"""Bytes that an entry may take: what is tried here is not memory."""
_TRIED = "tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One entry and dtype to try; ``count`` as in :func:`tests.opinfo.check.check_entry`."""

    entry: str
    dtype: str
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.entry}/{self.dtype}/{self.count or ''}"

    @classmethod
    def parse(cls, text: str) -> Job:
        """A job from its text."""
        entry, dtype, count = text.rsplit("/", 2)
        return cls(entry=entry, dtype=dtype, count=int(count) if count else None)


def prepare() -> None:
    """Make a process ready to try entries."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    import logging
    import warnings

    import torch

    from tests.speed import keep_bookkeeping

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=logging.CRITICAL)  # pyright: ignore[reportPrivateImportUsage]  # torch documents it as torch._logging
    if not flags:  # else it is forked from a process that does so
        keep_bookkeeping()


def attempt(name: str, _: bytes) -> outcome.Outcome:
    """Try the job of this text, in a worker; its record is the outcome's text."""
    from tests.opinfo.catalog import entry_named
    from tests.opinfo.check import check_entry

    job = Job.parse(name)
    record = check_entry(entry_named(job.entry), job.dtype, count=job.count)
    return outcome.Outcome(label=_TRIED, text=to_line(record))


def run_jobs(jobs: Sequence[Job], path: Path, *, workers: int = WORKERS) -> list[Record]:
    """Try all jobs; every record is appended to a file at once.

    Args:
        jobs: What to try, in order.
        path: File of JSON lines.
        workers: Number of processes.

    Returns:
        The records, in the order in which they came.
    """
    records: list[Record] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:

        def take(result: Result) -> None:
            records.append(_record(result))
            file.write(to_line(records[-1]) + "\n")
            file.flush()

        try_all(
            [[str(job)] for job in jobs],
            take,
            make=lambda: Worker("opinfo", deadline=LIMIT_SECONDS),
            workers=min(workers, len(jobs)),
            lives=JOBS_PER_WORKER,
        )
    return records


def _record(result: Result) -> Record:
    """The record of a job, also of one that has ended its process or was ended with it."""
    ended = result.outcome.label
    if ended == _TRIED:
        return from_line(result.outcome.text)
    job, late = Job.parse(result.case), ended == "hang"
    return Record(
        entry=job.entry,
        dtype=job.dtype,
        forward=Outcome.FAILED,
        gradient=Outcome.FAILED,
        reason=f"not done after {LIMIT_SECONDS:g} s" if late else f"the process ended with {ended}",
        error="Timeout" if late else "Crash",
    )
