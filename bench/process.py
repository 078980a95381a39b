"""Processes of contenders: how one is asked, what is in it, and the requests that suites share.

Suites define further requests beside the code that asks them. A process imports the modules of the
requests that it answers, so these may import no library but the one of the contender.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import WorkerFailed
from bench.peers import Prepared, load

if TYPE_CHECKING:  # it is made of torch, which asking a process needs not
    from bench.case import Case

ANSWER_SECONDS = 3600.0
"""Seconds that a worker may take for an answer: the largest cases compile and train for minutes."""
SMALL_SECONDS = 600.0
"""The same for small forms of cases."""
END_SECONDS = 60.0
"""Seconds that a process may take to end which was killed or has closed its output."""

_PEF = "pef:"


def case_of(path: Path) -> str:
    """The name of the case that is a user's PEF.

    Args:
        path: The PEF; made absolute, since workers run in folders of their own.

    Example:
        >>> case_of(Path("/home/me/net.pef"))
        'pef:/home/me/net.pef'
    """
    return f"{_PEF}{path.absolute()}"


def path_of(case: str) -> str | None:
    """The PEF that a case is, None for a case of the bench's own.

    Args:
        case: Name of the case.

    Example:
        >>> path_of("pef:/home/me/net.pef"), path_of("lenet")
        ('/home/me/net.pef', None)
    """
    return case.removeprefix(_PEF) if case.startswith(_PEF) else None


class Worker:
    """A process of ``bench.worker``; closing it ends the process.

    Args:
        case: Key of ``ALL`` or, with ``small``, of ``SMALL``.
        contender: Key of ``CONTENDERS``, ``+alloc`` may follow.
        threads: Processor cores it may use.
        small: Whether to take the small form of the case.
        environ: Environment variables to add.
        tree: Folder whose ``samba``, ``emulator`` and so on it imports, this one's if None.
            It must lie under the same harness, see ``bench.gate.tree_of``.
    """

    def __init__(
        self,
        *,
        case: str,
        contender: str,
        threads: int,
        small: bool = False,
        environ: Mapping[str, str] | None = None,
        tree: Path | None = None,
    ) -> None:
        self.case, self.contender = case, contender
        self._limit = SMALL_SECONDS if small else ANSWER_SECONDS
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # close() closes it
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.worker", case, contender, str(threads)),
                *(["--small"] if small else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=tree,
            env=worker_environment(threads) | dict(environ or {}),
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=END_SECONDS)
        self._said.close()

    def ask(self, what: Callable[..., dict[str, Any]], **details: Any) -> dict[str, Any]:
        """Have the process call a function, and wait for what it returns.

        Args:
            what: The function; its first argument is the contender, see :class:`Contestant`.
            details: Its other arguments, which JSON can hold.

        Raises:
            WorkerFailed: If the process ended instead of answering, or did not answer in time.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # both are pipes, see __init__
        try:
            name = f"{what.__module__}:{what.__qualname__}"
            stdin.write(json.dumps({"what": name, **details}) + "\n")
            stdin.flush()
            if not select.select([stdout], [], [], self._limit)[0]:
                self._process.kill()
                raise self._failure(f"no answer to {what.__name__!r} in {self._limit:g} s")
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait(END_SECONDS)
            self._said.seek(0)
            lines = self._said.read().strip().splitlines() or ["it printed nothing"]
            raise self._failure(lines[-1])
        return json.loads(line)

    def _failure(self, reason: str) -> WorkerFailed:
        return WorkerFailed(case=self.case, contender=self.contender, reason=reason)

    def steps(self, count: int) -> tuple[float, list[float]]:
        """Run steps and return their seconds all together and the first losses."""
        answer = self.ask(steps, count=count)
        return answer["seconds"], answer["losses"]

    def warm_up(self, seconds: float) -> float:
        """Run until it is steady and return the seconds a step takes then."""
        count, spent = 1, 0.0
        while True:
            took, _ = self.steps(count)
            spent += took
            if spent >= seconds and count > 1:
                return took / count
            count *= 2


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of the workers: the caller's, on the CPU, with so many threads."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "JAX_PLATFORMS": "cpu",
    }


KEPT_LOSSES = 4


class Contestant:
    """A contender with its case, built when it is first needed.

    Args:
        case: The case.
        contender: Name of the contender.
    """

    def __init__(self, case: Case, contender: str) -> None:
        self.case, self.contender = case, contender
        self._prepared: Prepared | None = None
        self._batches: Iterator[Any] = iter(())

    def prepare(self, model: Any) -> None:
        """Build the step for a model."""
        convert, _ = self._prepared = load(self.contender, self.case)(self.case, model)
        self._batches = itertools.cycle([convert(batch) for batch in self.case.batches()])

    @property
    def step(self) -> Any:
        """The training step; builds it."""
        if self._prepared is None:
            load(self.contender, self.case)  # the allocator's settings come before the model
            self.prepare(self.case.model())
        assert self._prepared is not None
        return self._prepared[1]

    def batches(self, count: int) -> list[Any]:
        """The next so many batches, in the form that the step takes."""
        return list(itertools.islice(self._batches, count))


def seconds_of(action: Callable[[], object]) -> float:
    """Seconds that something takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def steps(contestant: Contestant, count: int) -> dict[str, Any]:
    """Run steps.

    Args:
        contestant: Who runs.
        count: How many.

    Returns:
        ``seconds`` of all together and the first ``losses``.
    """
    step = contestant.step
    todo = contestant.batches(count)
    losses: list[float] = []
    seconds = seconds_of(lambda: losses.extend(step(batch) for batch in todo))
    return {"seconds": seconds, "losses": losses[:KEPT_LOSSES]}
