"""One data parallel run: how it is to be parallel, what it reduces, and which ranks it tells.

Where data of some ranks may end before that of others, every rank tells all others before each run
either what it is about to run, or that its data has ended. A rank that has none left takes part
with zeros, as in torch's ``Join``, and makes the same update, so that weights and optimizer states
stay the same bits everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from emulator.held_signals import HELD
from emulator.memory.buckets import Bucket
from emulator.plans.steps import StepKey
from emulator.replicas.comm.agreement import differing
from emulator.replicas.comm.errors import DataEnded, DataParallelError, Disagreement
from emulator.replicas.comm.worker import CommThread
from emulator.replicas.parallel import ParallelPlan
from emulator.replicas.schedule import Mode
from samba.distributed.job import Job
from samba.profiler import PROFILER
from samba.support.timeline import Track

_OPERATION = "samba.session.join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The way in which a run is to be parallel.

    Args:
        reduce_on_rdu: Whether gradients are reduced in device memory, not in a host copy.
        mode: What may overlap and overtake.
    """

    reduce_on_rdu: bool
    mode: Mode


class Trainer(Protocol):
    """An algorithm that runs a program in the place of its REDUCE sections."""

    @property
    def name(self) -> str:
        """The algorithm's name, which ranks compare."""
        ...

    def prepare(self, plan: ParallelPlan) -> Callable[[], None]:
        """Prepare a run.

        Args:
            plan: Its plans and reductions.

        Returns:
            A function that runs it in the order of the PEF.
        """
        ...

    def weights_were_set(self) -> None:
        """Called when the host has given all ranks new weights."""
        ...

    def release(self) -> None:
        """Communicate no more; all ranks call this together."""
        ...


def all_wishes() -> dict[tuple[bool, str], Wish]:
    """Every way in which a run can be parallel, by place of the reduction and name of the mode."""
    return {
        (on_device, mode.value): Wish(reduce_on_rdu=on_device, mode=mode)
        for on_device in (False, True)
        for mode in Mode
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run with reductions, as the runner sees it: like a plan.

    Args:
        begin: Compares with the others what is about to run.
        count: Counts a run that took place.
        plan: Its plans and reductions.
        facts: What must be the same on all ranks.
        execute: Runs them; on return nothing is under way that the next run would not wait for.
        steps: What it runs.
        wish: How the script wants it run.
    """

    begin: Callable[[PreparedRun], None]
    count: Callable[[], object]
    plan: ParallelPlan
    facts: dict[str, str]
    execute: Callable[[], None]
    steps: StepKey
    wish: Wish

    @property
    def writes(self) -> tuple[int, ...]:
        """Buffers that hold something afterwards."""
        return self.plan.writes

    @property
    def drops(self) -> tuple[int, ...]:
        """Buffers whose contents are void afterwards."""
        return self.plan.drops

    def run(self) -> None:
        """Run the plans and reductions; handlers of signals run before all of it or after."""
        with HELD:
            try:
                self.begin(self)
            except DataParallelError as error:
                error.add_note(self.plan.state_after(()))
                raise
            self.execute()
            self.count()


class Reducer:
    """``emulator.replicas.parallel.Net`` of a job.

    Args:
        job: The job.
        step: Tells the number of the run.
        reduce: Averages the contents of a bucket.
    """

    def __init__(self, job: Job, step: Callable[[], int], reduce: Any) -> None:
        self._job, self._step, self._reduce = job, step, reduce
        self.thread: CommThread = job.thread

    def reduce(self, bucket: Bucket, array: Any) -> Any:
        if self._job.watchdog is not None:
            self._job.watchdog.at(self._step(), bucket.index)
        timeline = PROFILER.timeline
        if timeline is None:
            return self._reduce(array)
        with timeline.span(Track.COMMUNICATION, f"reduce bucket {bucket.index}"):
            return self._reduce(array)

    def failure(self, bucket: Bucket, error: BaseException) -> BaseException:
        where = f"REDUCE bucket {bucket.index} of step {self._step()}"
        return self._job.explain(where, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A run that a rank is about to make.

    Args:
        facts: What must be the same on all ranks that make it, by name.
        steps: ``(section, step)`` pairs.
        reduce_on_rdu: Whether gradients are reduced in device memory.
        mode: Its ``data_parallel_mode``.
        argins: Hyperparameters of its updates, by number.
    """

    facts: dict[str, str]
    steps: StepKey
    reduce_on_rdu: bool
    mode: str
    argins: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a rank tells whose data has ended.

    Args:
        runs: How many runs it made.
        streams: Where its random streams stand: seed and position of each.
    """

    runs: int
    streams: Sequence[Sequence[int]]


class Joint:
    """What the ranks tell each other before each run.

    Args:
        job: The ranks.
        by_initial_size: Whether a sum of gradients is divided by the number of all ranks, or of
            those that have data.
        throws: Whether it is an error that the data of some ranks ends before that of others.

    Attributes:
        shares: By how many a sum of gradients is divided in the run that was announced last.
        runs: How many runs this rank has announced.
    """

    def __init__(self, job: Job, *, by_initial_size: bool, throws: bool) -> None:
        self._job, self._by_initial_size, self._throws = job, by_initial_size, throws
        self.shares = job.size
        self.runs = 0

    def agree(self) -> None:
        """Make sure that all ranks are here, with the same arguments.

        Raises:
            DataParallelError: If they are not.
        """
        self._job.agree(
            f"{_OPERATION}()",
            {
                "divide_by_initial_world_size": str(self._by_initial_size),
                "throw_on_early_termination": str(self._throws),
            },
        )

    def announce(self, mine: Announcement) -> None:
        """Announce a run of this rank.

        Args:
            mine: The run.

        Raises:
            Disagreement: If ranks with data are about to make different runs.
            DataEnded: If some have none, and that is an error.
            DataParallelError: If a rank does not come.
        """
        self._exchange(asdict(mine))
        self.runs += 1

    def next_run(self, streams: Sequence[Sequence[int]]) -> Announcement | Sequence[Ended]:
        """On a rank whose data has ended, wait for what the other ranks do next.

        Args:
            streams: Where its random streams stand.

        Returns:
            The run that they are about to make; if no rank has data, what each of them told.

        Raises:
            Disagreement: As :meth:`announce`, and the others.
        """
        rows = self._exchange({"ended": self.runs, "streams": [list(row) for row in streams]})
        announced = next((row for row in rows if "ended" not in row), None)
        if announced is None:
            return [Ended(runs=row["ended"], streams=row["streams"]) for row in rows]
        steps = tuple((section, step) for section, step in announced["steps"])
        argins = {int(index): value for index, value in announced["argins"].items()}
        return Announcement(**{**announced, "steps": steps, "argins": argins})

    def _exchange(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        texts = self._job.gather(_OPERATION, json.dumps(mine).encode())
        rows: list[dict[str, Any]] = [json.loads(text) for text in texts]
        active = [row for row in rows if "ended" not in row]
        if not active:
            return rows
        ended = {rank: row["ended"] for rank, row in enumerate(rows) if "ended" in row}
        if ended and self._throws:
            raise DataEnded(steps=ended)
        first = active[0]["facts"]
        facts = differing([row.get("facts", first) for row in rows])
        if facts:
            raise Disagreement(when=f"a run within {_OPERATION}()", facts=facts)
        self.shares = self._job.size if self._by_initial_size else len(active)
        return rows
