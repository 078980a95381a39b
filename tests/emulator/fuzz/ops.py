"""Every registered op with drawn arguments: none may abort, hang, or be killed.

``python -m tests.emulator.fuzz.ops --cases 20 --seed 0`` draws 20 cases for each op, runs each in a
process of its own limits (see ``op_worker``) and prints counts and one line for each find, with the
command that repeats it. It ends with 1 if there is a find.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from emulator.op_facts.table import op_facts
from tests.emulator.fuzz.op_cases import NOT_DRAWN
from tests.processes import ended

START_S = 120.0
"""Seconds that a worker may take until it is ready."""
DEADLINE_S = 10.0
"""Processor time that a case may take."""
PATIENCE = 18
"""How many times the deadline a case may take by the clock, on a machine that others use."""
WORKER = ("-m", "tests.emulator.fuzz.op_worker")
"""What Python runs cases with."""
DEFECTS = frozenset({"abort", "hang", "memory", "shape", "dtype"})
"""Outcomes that are finds."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one case.

    Args:
        op, seed: The case.
        outcome: ``ran``, ``refused`` (an error of this project), ``foreign`` (another error),
            ``too large``, ``torch died``, ``value``, or one of ``DEFECTS``.
        kind: Type of the error, if there was one.
        detail: More, in words.
        torch: Whether torch accepts the case; None where it was not asked.
    """

    op: str
    seed: int
    outcome: str
    kind: str = ""
    detail: str = ""
    torch: bool | None = None

    @property
    def line(self) -> str:
        """What was found, and the command that repeats it."""
        command = f"python -m tests.emulator.fuzz.ops --op {self.op} --seed {self.seed} --cases 1"
        kind = f"{self.outcome} {self.kind}".strip()
        return f"{kind}: {command}  # {' '.join(self.detail.split())[:200]}"


class _Worker:
    """A process that runs cases, and what it says."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, *WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        self._rest = b""
        if self.answer(START_S) is None:
            self.close()
            raise TimeoutError(f"a worker was not ready after {START_S:g} s")

    def run(self, op: str, seed: int) -> Outcome:
        """Run one case, to its end or its deadline."""
        stdin: IO[bytes] = self.process.stdin  # pyright: ignore[reportAssignmentType]  # it is a pipe
        stdin.write(f"{op} {seed}\n".encode())
        stdin.flush()
        phase, start = "device", self._cpu()
        began = time.monotonic()
        while True:
            slow = self._cpu() - start > DEADLINE_S
            if slow or time.monotonic() - began > PATIENCE * DEADLINE_S:
                if phase == "torch":
                    return Outcome(op=op, seed=seed, outcome="torch died", detail="a hang")
                detail = f"over {DEADLINE_S:g} s"
                return Outcome(op=op, seed=seed, outcome="hang", detail=detail)
            message = self.answer(0.5)
            if message is None:
                continue
            if not message:
                return self._died(op, seed, phase)
            if "outcome" in message:
                return Outcome(op=op, seed=seed, **message)
            if message["phase"] != phase:
                phase, start = message["phase"], self._cpu()

    def _died(self, op: str, seed: int, phase: str) -> Outcome:
        code = ended(self.process)
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if phase == "torch":
            return Outcome(op=op, seed=seed, outcome="torch died", detail=name)
        self.errors.seek(0)
        tail = self.errors.read()[-600:].decode(errors="replace")
        return Outcome(op=op, seed=seed, outcome="abort", kind=name, detail=tail)

    def _cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """The next message; None after the timeout, empty at the end of the process."""
        stdout: IO[bytes] = self.process.stdout  # pyright: ignore[reportAssignmentType]  # it is a pipe
        while b"\n" not in self._rest:
            if not select.select([stdout], [], [], timeout)[0]:
                return None
            more = os.read(stdout.fileno(), 65536)
            if not more:
                return {}
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        ended(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()


def run_cases(cases: Iterable[tuple[str, int]]) -> Iterator[Outcome]:
    """Run cases one after the other; a process that dies or hangs is replaced.

    Args:
        cases: Names of ops and seeds.

    Yields:
        The outcome of each.
    """
    worker: _Worker | None = None
    try:
        for count, (op, seed) in enumerate(cases, start=1):
            worker = _Worker() if worker is None else worker
            outcome = worker.run(op, seed)
            # Compiled code is never given back: a process that lives long grows.
            if outcome.outcome in ("abort", "hang", "memory", "torch died") or count % 400 == 0:
                worker.close()
                worker = None
            yield outcome
    finally:
        if worker is not None:
            worker.close()


def drawn_ops() -> list[str]:
    """Names of the ops that cases are drawn for, sorted."""
    return sorted(set(op_facts()) - NOT_DRAWN)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.fuzz.ops")
    parser.add_argument("--cases", type=int, default=20, help="cases for each op")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first case; the next are counted on"
    )
    parser.add_argument("--op", action="append", help="this op alone; may be given again")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that long")
    parser.add_argument("--again", type=Path, help="the finds of an earlier file of --all alone")
    parser.add_argument("--all", type=Path, help="a file for every outcome, one JSON object a line")
    options = parser.parse_args(argv)
    part, parts = (int(n) for n in options.part.split("/"))
    names = (options.op or drawn_ops())[part::parts]
    end = time.monotonic() + options.seconds
    counts: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    finds = 0
    log = None if options.all is None else options.all.open("w")
    seeds = range(options.seed, options.seed + options.cases)
    wanted: Iterable[tuple[str, int]] = ((op, seed) for seed in seeds for op in names)
    if options.again is not None:
        wanted = _finds(options.again)
    for outcome in run_cases(case for case in wanted if time.monotonic() < end):
        counts[outcome.outcome] += 1
        if outcome.outcome == "foreign":
            foreign[outcome.kind + (", torch accepts" if outcome.torch else "")] += 1
        if outcome.outcome in DEFECTS:
            finds += 1
            print(outcome.line, flush=True)
        if log is not None:
            log.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            log.flush()
    if log is not None:
        log.close()
    print(f"{sum(counts.values())} cases of {len(names)} ops: {_listed(counts)}")
    if foreign:
        print(f"foreign errors: {_listed(foreign)}")
    return 1 if finds else 0


def _finds(file: Path) -> list[tuple[str, int]]:
    outcomes = [json.loads(line) for line in file.read_text().splitlines()]
    return [(o["op"], o["seed"]) for o in outcomes if o["outcome"] in {*DEFECTS, "value"}]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
