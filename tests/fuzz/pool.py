"""Workers, and the watch over them: one that dies or falls silent has found something."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tests import warm
from tests.fuzz.outcome import ROOT, Outcome, dumped_place
from tests.processes import ended

_START = 120.0
"""Seconds that a worker may take until it is ready."""
_READING = warm.Server("from tests.fuzz import worker; worker.ready('reading')")
_FIELDS = [field.name for field in fields(Outcome)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a case, by name.

    Args:
        case: Name of the case.
        outcome: What became of it.
        seconds: How long it took.
        peak: Most memory that its worker has had, in bytes.
    """

    case: str
    outcome: Outcome
    seconds: float = 0.0
    peak: int = 0


class Worker:
    """A process that tries cases of one target.

    Args:
        target: A key of ``tests.fuzz.worker.TARGETS``.
        deadline: Seconds after which a case hangs, if it has computed for as long; one that does
            not compute may take six times as long, since other processes may keep it from it.
        plant: Fault to put in on purpose, a key of ``tests.fuzz.plants.PLANTS``.
    """

    def __init__(self, target: str, *, deadline: float = 10.0, plant: str = "") -> None:
        self._deadline = deadline
        self._target, self._plant = target, plant
        self._process: warm.Warm | None = None
        self._cases: Any = None
        self._answers: Any = None
        self._errors: Any = None
        self._pending = b""
        self._cpu = 0.0
        self.base = 0
        self.done = 0

    def tries(self, cases: Sequence[str]) -> Iterator[Result]:
        """Try cases; a worker that dies is started again for the rest of them.

        Args:
            cases: Names.

        Yields:
            A result for each, in their order.
        """
        left = list(cases)
        while left:
            self._start()
            # It may be dead already, which the next look tells.
            with contextlib.suppress(BrokenPipeError):
                self._cases.write(json.dumps(left).encode() + b"\n")
                self._cases.flush()
            while left:
                answer = self._answer(self._deadline)
                if isinstance(answer, Outcome):
                    yield Result(case=left.pop(0), outcome=answer, seconds=self._deadline)
                    break
                self._cpu = answer["cpu"]
                self.done += 1
                outcome = Outcome(**{name: answer[name] for name in _FIELDS})
                yield Result(
                    case=left.pop(0),
                    outcome=outcome,
                    seconds=answer["seconds"],
                    peak=answer["peak"],
                )

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            ended(self._process)
            for stream in (self._cases, self._answers, self._errors):
                # What was not taken before the process died cannot be written any more.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
            self._process, self._pending, self.done = None, b"", 0

    def _start(self) -> None:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open for as long as the process
            reading, cases = os.pipe()
            answers, writing = os.pipe()
            self._cases, self._answers = os.fdopen(cases, "wb"), os.fdopen(answers, "rb")
            try:
                self._process = self._begun(reading, writing, self._errors.fileno())
            finally:
                os.close(reading)
                os.close(writing)
            answer = self._answer(_START)
            if isinstance(answer, Outcome):
                raise RuntimeError(f"a worker did not start: {answer.label}\n{answer.text}")
            self._cpu = answer["cpu"]

    def _begun(self, stdin: int, stdout: int, stderr: int) -> warm.Warm:
        """Forked from a process that has imported what a worker needs, which takes long."""
        # A drawn call compares with torch on the host: no other device is asked.
        on_host = self._target == "op"
        code = "import jax; jax.config.update('jax_platforms', 'cpu')\n" if on_host else ""
        code += f"from tests.fuzz import worker; worker.main({self._target!r}, {self._plant!r})"
        return warm.start(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            server=_READING if self._target == "reading" else None,
        )

    def _answer(self, deadline: float) -> dict[str, Any] | Outcome:
        """The next line of the process; an outcome if it has died or hangs."""
        process = self._process
        assert process is not None
        started = time.monotonic()
        while b"\n" not in self._pending:
            if select.select([self._answers], [], [], min(deadline, 0.5))[0]:
                piece = os.read(self._answers.fileno(), 1 << 16)
                self._pending += piece
                if not piece:
                    return self._dead()
            silent = time.monotonic() - started
            if silent > deadline and (
                silent > 6 * deadline or _cpu_seconds(process.pid) - self._cpu > deadline
            ):
                return self._hanging()
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _dead(self) -> Outcome:
        assert self._process is not None
        code = ended(self._process)
        label = f"signal {-code}" if code < 0 else f"exit {code}"
        return self._ended(label)

    def _hanging(self) -> Outcome:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGUSR1)  # it writes where it is, even inside of C
        time.sleep(0.3)
        return self._ended("hang")

    def _ended(self, label: str) -> Outcome:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")[-6000:]
        self.close()
        if "in _in_torch" in text:  # of tests/emulator/fuzz/op_running.py
            return Outcome(label="torch died", text=text)
        return Outcome(label=label, find=True, place=dumped_place(text), text=text)


def _cpu_seconds(pid: int) -> float:
    """What a process has computed so far; infinite if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            numbers = file.read().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def try_all(
    batches: Iterable[Sequence[str]],
    take: Callable[[Result], None],
    *,
    make: Callable[[], Worker],
    workers: int = 2,
    lives: int = 10**9,
    until: float = float("inf"),
) -> None:
    """Try batches of cases in several workers.

    Args:
        batches: Names of cases.
        take: Is given each result, one at a time.
        make: Makes a worker.
        workers: How many.
        lives: Cases after which a worker makes room for a new one.
        until: Time (``time.monotonic()``) from which on no batch is begun.
    """
    source, lock = iter(batches), threading.Lock()
    problems: list[BaseException] = []

    def work() -> None:
        worker = make()
        try:
            while not problems and time.monotonic() < until:
                with lock:
                    batch = next(source, None)
                if batch is None:
                    break
                for result in worker.tries(batch):
                    with lock:
                        take(result)
                if worker.done >= lives:
                    worker.close()
        except BaseException as error:  # told by the thread that waits for all
            problems.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # a worker watches over each of its cases: no wait is without end
    if problems:
        raise problems[0]
