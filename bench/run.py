"""Runs the contenders against each other.

For each case every contender gets a process of its own. They are warmed up and
then take turns, a round of steps each, so that a machine that slows down slows
all of them. The first losses must agree, or the times would compare nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from bench.errors import LossesDiffer, WorkerFailed
from bench.peers import OURS, REFERENCE
from bench.report import CaseResult, ContenderResult

CHECKED_LOSSES = 4
LOSS_RTOL = 1e-3
"""Contenders differ by rounding only; GPT's four first losses differ by about 1e-6."""


class Worker:
    """A contender's process; closing it ends the process.

    Args:
        case: Key of ``CASES``.
        contender: Key of ``CONTENDERS``.
        threads: Processor cores it may use.
    """

    def __init__(self, *, case: str, contender: str, threads: int) -> None:
        self.case, self.contender = case, contender
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # close() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", case, contender, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=worker_environment(threads),
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def steps(self, count: int) -> tuple[float, list[float]]:
        """Run steps and return their seconds all together and the first losses.

        Raises:
            WorkerFailed: If the process ended instead of answering.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # both are pipes, see __init__
        try:
            stdin.write(json.dumps({"steps": count}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._said.seek(0)
            lines = self._said.read().strip().splitlines() or ["it said nothing"]
            raise WorkerFailed(case=self.case, contender=self.contender, reason=lines[-1])
        answer = json.loads(line)
        return answer["seconds"], answer["losses"]


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of the workers: the caller's, on the CPU, with so many threads."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "JAX_PLATFORMS": "cpu",
    }


def warm_up(worker: Worker, seconds: float) -> float:
    """Run a worker until it is steady and return the seconds its steps take then."""
    count, spent = 1, 0.0
    while True:
        took, _ = worker.steps(count)
        spent += took
        if spent >= seconds and count > 1:
            return took / count
        count *= 2


def check_losses(case: str, losses: dict[str, list[float]]) -> None:
    """Compare the first losses of all contenders with the reference, if that is among them.

    Raises:
        LossesDiffer: If one is further than ``LOSS_RTOL`` from the reference.
    """
    for values in losses.values():
        pairs = zip(values, losses.get(REFERENCE, values), strict=True)
        if not all(math.isclose(a, b, rel_tol=LOSS_RTOL) for a, b in pairs):
            raise LossesDiffer(case=case, losses=losses)


def run_case(
    case: str,
    contenders: Sequence[str],
    *,
    rounds: int,
    round_seconds: float,
    warm_seconds: float,
    threads: int,
) -> CaseResult:
    """Time all contenders on one case.

    Args:
        case: Key of ``CASES``.
        contenders: Keys of ``CONTENDERS``. A peer that fails is left out with its
            reason; a failure of ours is an error.
        rounds: Rounds each contender takes.
        round_seconds: About how long a round lasts.
        warm_seconds: Least time for warming up.
        threads: Processor cores each contender may use.

    Raises:
        WorkerFailed: If this project's own worker fails.
        LossesDiffer: If the contenders do not compute the same.
    """
    failed: dict[str, str] = {}
    losses: dict[str, list[float]] = {}
    steps: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in contenders:
            worker = Worker(case=case, contender=name, threads=threads)
            stack.callback(worker.close)
            try:
                _, losses[name] = worker.steps(CHECKED_LOSSES)
                step_seconds = warm_up(worker, warm_seconds)
            except WorkerFailed as error:
                if name == OURS:
                    raise
                failed[name] = error.reason
                continue
            workers[name] = worker
            steps[name] = max(1, round(round_seconds / step_seconds))
            seconds[name] = []
        check_losses(case, losses)
        turns = list(workers)
        for r in range(rounds if turns else 0):
            # Whoever comes first meets other caches than the rest: let all do so in turn.
            first = r % len(turns)
            for name in turns[first:] + turns[:first]:
                took, _ = workers[name].steps(steps[name])
                seconds[name].append(took / steps[name])
    results = tuple(
        ContenderResult(name=name, steps=steps[name], seconds=tuple(seconds[name]))
        for name in turns
    )
    return CaseResult(name=case, contenders=results, failed=tuple(failed.items()))
