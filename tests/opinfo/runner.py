"""Many entries in worker processes: a limit on the time of each, results on disk as they come."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.opinfo.record import Outcome, Record, to_line
from tests.processes import SECONDS_TO_END

WORKERS = 2
LIMIT_SECONDS = 240.0
"""For one entry and dtype, compiling included; a worker that takes longer is ended."""
JOBS_PER_WORKER = 250
"""A worker is replaced after that many, since executables stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One entry and dtype to try; ``count`` as in :func:`tests.opinfo.check.check_entry`."""

    entry: str
    dtype: str
    count: int | None = None


def work(connection: Connection) -> None:
    """Take jobs from a connection and send records back, until None comes."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    import logging
    import warnings

    import torch

    from tests.opinfo.catalog import entry_named
    from tests.opinfo.check import check_entry
    from tests.speed import keep_bookkeeping

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=logging.CRITICAL)  # pyright: ignore[reportPrivateImportUsage]  # torch documents it as torch._logging
    keep_bookkeeping()
    while (job := connection.recv()) is not None:
        connection.send(check_entry(entry_named(job.entry), job.dtype, count=job.count))


@dataclass(slots=True)
class _Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    started: float = 0.0
    done: int = 0


def _start() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, connection=ours)


def run_jobs(jobs: Sequence[Job], path: Path, *, workers: int = WORKERS) -> list[Record]:
    """Try all jobs; every record is appended to a file at once.

    Args:
        jobs: What to try, in order.
        path: File of JSON lines.
        workers: Number of processes.

    Returns:
        The records, in the order in which they came.
    """
    waiting = deque(jobs)
    records: list[Record] = []
    pool = [_start() for _ in range(min(workers, len(jobs)))]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while waiting or any(w.job for w in pool):
            for i, worker in enumerate(pool):
                if worker.job is None and waiting:
                    if worker.done >= JOBS_PER_WORKER:
                        _end(worker)
                        worker = pool[i] = _start()
                    worker.job, worker.started = waiting.popleft(), time.monotonic()
                    worker.connection.send(worker.job)
            ready = wait([w.connection for w in pool if w.job], timeout=1.0)
            for i, worker in enumerate(pool):
                if worker.job is None:
                    continue
                record = _collect(worker, worker.connection in ready)
                if record is None:
                    continue
                if record.error in ("Crash", "Timeout"):
                    _end(worker)
                    pool[i] = _start()
                worker.job, worker.done = None, worker.done + 1
                records.append(record)
                file.write(to_line(record) + "\n")
                file.flush()
    for worker in pool:
        _end(worker)
    return records


def _collect(worker: _Worker, ready: bool) -> Record | None:
    """The record of a worker's job, if it is done or will never be."""
    job = worker.job
    if job is None:
        return None
    if ready:
        try:
            return worker.connection.recv()
        except (EOFError, ConnectionResetError):
            _gone(worker)
            return _lost(job, "Crash", f"the process ended with {worker.process.exitcode}")
    if time.monotonic() - worker.started > LIMIT_SECONDS:
        return _lost(job, "Timeout", f"not done after {LIMIT_SECONDS:g} s")
    return None


def _lost(job: Job, error: str, reason: str) -> Record:
    return Record(
        entry=job.entry,
        dtype=job.dtype,
        forward=Outcome.FAILED,
        gradient=Outcome.FAILED,
        reason=reason,
        error=error,
    )


def _end(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.terminate()
    _gone(worker)


def _gone(worker: _Worker) -> None:
    """Wait for the end of a process; it is killed if it does not come by itself."""
    worker.process.join(SECONDS_TO_END)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join(SECONDS_TO_END)
