"""One data parallel run: how it is to be parallel, who runs it, and what it reduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from emulator.held_signals import HELD
from emulator.memory.buckets import Bucket
from emulator.plans.steps import StepKey
from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.worker import CommThread
from emulator.replicas.parallel import ParallelPlan
from emulator.replicas.schedule import Mode
from samba.distributed.job import Job
from samba.profiler import PROFILER
from samba.support.timeline import Track

__all__ = ["PreparedRun", "Reducer", "Runs", "Trainer", "Wish", "all_wishes"]


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


class Runs(Protocol):
    """The replicas whose runs these are."""

    @property
    def step(self) -> int:
        """Number of the run."""
        ...

    def begin(self, run: PreparedRun) -> None:
        """Compare with the others what is about to run."""
        ...

    def count(self) -> None:
        """Count a run that took place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run with reductions, as the runner sees it: like a plan.

    Args:
        replicas: Whose it is.
        plan: Its plans and reductions.
        facts: What must be the same on all ranks.
        execute: Runs them; on return nothing is under way that the next run would not wait for.
        steps: What it runs.
        wish: How.
    """

    replicas: Runs
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
                self.replicas.begin(self)
            except DataParallelError as error:
                error.add_note(self.plan.state_after(()))
                raise
            self.execute()
            self.replicas.count()


class Reducer:
    """``emulator.replicas.parallel.Net`` of a job."""

    def __init__(self, replicas: Runs, job: Job, reduce: Any) -> None:
        self._replicas, self._job, self._reduce = replicas, job, reduce
        self.thread: CommThread = job.thread

    def reduce(self, bucket: Bucket, array: Any) -> Any:
        if self._job.watchdog is not None:
            self._job.watchdog.at(self._replicas.step, bucket.index)
        timeline = PROFILER.timeline
        if timeline is None:
            return self._reduce(array)
        with timeline.span(Track.COMMUNICATION, f"reduce bucket {bucket.index}"):
            return self._reduce(array)

    def failure(self, bucket: Bucket, error: BaseException) -> BaseException:
        where = f"REDUCE bucket {bucket.index} of step {self._replicas.step}"
        return self._job.explain(where, error)
