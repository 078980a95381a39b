"""The replicas of one loaded program: what ``session.run(data_parallel=True)`` does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist

from emulator.device import Device
from emulator.held_signals import HELD
from emulator.kernels.agreement import kernels_here, take_the_same_kernels
from emulator.memory.buckets import Bucket
from emulator.plans.step_choice import StepKey
from emulator.replicas.comm.agreement import texts_unless_same
from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.worker import CommThread
from emulator.replicas.parallel import ParallelPlan, prepare_parallel, reducer, run_parallel
from emulator.replicas.schedule import Mode
from pef_schema.program import Role, SectionKind
from samba.distributed import job as jobs
from samba.distributed.environment import detect
from samba.distributed.errors import NotDataParallel
from samba.distributed.job import Job
from samba.distributed.mesh import pef_key
from samba.distributed.settings import checks_every_run
from samba.errors import ArgumentError
from samba.profiler import PROFILER
from samba.support.deviations import Deviations, tell
from samba.support.timeline import Track

_CHECKED_RUNS = 2
"""Runs before which replicas always compare notes; what differs usually does from the start."""
_CHUNK = 64 << 20
_SAME_EVERYWHERE = frozenset({Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
"""Roles of regions of which rank 0's values hold for all."""


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


class Replicas:
    """The replicas of a loaded program, as the program sees them.

    Args:
        device: The device.
        mode: ``data_parallel_mode`` that ``trace_graph`` was given; None if any may come.
        job: The other replicas; None if there are none.
        mesh: The processes that run the same program on one mesh; None if there are none.
    """

    def __init__(
        self,
        device: Device,
        mode: str | None = None,
        job: Job | None = None,
        mesh: Job | None = None,
    ) -> None:
        self._device, self._job, self.mode = device, job, mode
        self._leading = job or mesh
        self.size = 1 if job is None else job.size
        self.rank = 0 if job is None else job.rank
        self.step = 0
        self._program = device.program
        self._reducers: dict[bool, _Reducer] = {}
        self.trainer: Trainer | None = None
        self._wishes = _all_wishes()
        self._deviations = Deviations()
        if job is not None:
            device.use_buckets()
            device.use_replica(job.rank)

    # -- loading ------------------------------------------------------------

    def agree(self, pef: str) -> None:
        """Make sure that all replicas have loaded the same, and take the same kernels.

        Args:
            pef: Path of the PEF.

        Raises:
            Disagreement: If they have not.
        """
        if self._job is None or not self._trains:
            return
        layout = repr([(b.regions, b.offsets, b.size, b.dtype.name) for b in self._buckets])
        self._job.agree(
            "utils.trace_graph",
            {
                "PEF": pef_key(pef),
                "gradient buckets": f"{len(self._buckets)}, layout {_digest(layout)}",
                "engine": self._job.engine,
                "data_parallel_mode": self.mode or "any",
            },
        )
        here = kernels_here().encode()
        said = self._job.together(
            "utils.trace_graph", lambda control: texts_unless_same(control, here)
        )
        take_the_same_kernels([kernels.decode() for kernels in said or (here,)])

    def agree_on_algorithm(self, name: str) -> None:
        """Make sure that all replicas are about to train by the same algorithm.

        Args:
            name: Its name.

        Raises:
            Disagreement: If they are not.
        """
        if self._job is not None:
            self._job.agree("samba.distributed.bagua.with_session", {"algorithm": name})

    def use(self, trainer: Trainer | None) -> None:
        """Let runs be those of an algorithm, or with None those of the REDUCE sections.

        Args:
            trainer: Who knows the algorithm.
        """
        self.trainer = trainer
        self._wishes = _all_wishes()  # others than before, so that runners prepare anew

    @contextmanager
    def same_values(self, regions: Sequence[int]) -> Iterator[None]:
        """After the body has written regions, give all replicas those of rank 0.

        Where there are others, handlers of signals run before all of it or after.

        Args:
            regions: The regions; those that are a replica's own, such as inputs, are left out.
        """
        with nullcontext() if self._job is None else HELD:
            yield
            if not self._trains:
                return
            of = self._program.regions
            chosen = [r for r in dict.fromkeys(regions) if of[r].role in _SAME_EVERYWHERE]
            if not chosen:
                return
            if self._job is not None:
                self._share(self._job, chosen)
            if self.trainer is not None:
                self.trainer.weights_were_set()

    @contextmanager
    def getting_tensors(self) -> Iterator[None]:
        """Time the body as what retrieves tensors, of all replicas where there are several."""
        with PROFILER.event("PyRT_GET_TENSORS"):
            if self.size == 1:
                yield
                return
            with PROFILER.event("PyRT_GET_TENSORS_GATHER"):
                yield

    def _share(self, job: Job, regions: Sequence[int]) -> None:
        with PROFILER.event("PyRT_SET_TENSORS_BROADCAST"):
            job.agree("setting tensors", {"tensors": _digest(repr(regions))})
            held = np.array([self._device.pool.buffers[r] is not None for r in regions], np.uint8)
            job.together("setting tensors", lambda control: control.broadcast(held))
            for region, is_held in zip(regions, held, strict=True):
                self._broadcast(job, region, bool(is_held))

    def _broadcast(self, job: Job, region: int, held: bool) -> None:
        device, name = self._device, self._program.regions[region].name
        if not held:
            device.pool.drop(region)
            return
        if job.rank == 0 or device.pool.buffers[region] is not None:
            values = device.read(region)
        else:
            shape, dtype = device.buffer_map.form(region)
            values = np.zeros(shape, dtype)
        flat = values.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            job.together(f"setting {name}", lambda control, part=part: control.broadcast(part))
        if job.rank != 0:
            device.write(region, values)

    # -- running ------------------------------------------------------------

    def wish(self, data_parallel: bool, reduce_on_rdu: bool, mode: str) -> Wish | None:
        """Settle the arguments of a run.

        Args:
            data_parallel, reduce_on_rdu: As ``session.run`` was given them.
            mode: Its ``data_parallel_mode``.

        Returns:
            How to run, None if there is nobody to run with.

        Raises:
            ArgumentError: If the mode is not that of ``trace_graph``.
        """
        if not data_parallel:
            return None
        if self.mode is not None and mode != self.mode:
            raise ArgumentError(
                where="session.run(data_parallel_mode=...)",
                found=repr(mode),
                wanted=f"{self.mode!r}, as utils.trace_graph was given",
                hint="Give both the same.",
            )
        if self.size == 1 and self.trainer is None:
            self._deviations.tell(
                "lone-replica",
                "session.run(data_parallel=True) with one replica: there is nothing to reduce. "
                "Start several with mpirun -np, torchrun or python -m samba launch -n",
            )
            return None
        return self._wishes[bool(reduce_on_rdu), mode]

    def tell_if_unreduced(self, steps: StepKey) -> None:
        """Say once that weights are about to be updated without the other replicas.

        Args:
            steps: What a run without ``data_parallel=True`` is about to run.
        """
        if self.size == 1 or not self._has_gradients:
            return
        of = self._program.sections
        if any(of[s].steps[k].kind is SectionKind.OPT for s, k in steps):
            self._deviations.tell(
                "unreduced-replicas",
                f"session.run without data_parallel=True in one of {self.size} replicas: "
                "gradients are not reduced, and the replicas' weights will diverge",
            )

    def keywords(self, data_parallel: bool, reduce_on_rdu: bool) -> dict[str, Any]:
        """Keywords of ``session.run`` for a tool that was told whether to run in parallel."""
        return {
            "data_parallel": data_parallel,
            "reduce_on_rdu": reduce_on_rdu,
            "data_parallel_mode": self.mode or Mode.NORMAL.value,
        }

    def decide(self, flag: bool) -> bool:
        """The decision of rank 0, for all.

        Args:
            flag: What this rank would decide.
        """
        if self._leading is None:
            return flag
        decided = np.array([flag], np.uint8)
        self._leading.together("measuring", lambda control: control.broadcast(decided))
        return bool(decided[0])

    def prepare(self, steps: StepKey, wish: Wish) -> PreparedRun | None:
        """Prepare a run.

        Args:
            steps: What to run.
            wish: How.

        Returns:
            What the runner runs; None if it has nothing to reduce.

        Raises:
            NotDataParallel: If it should have.
        """
        of = self._program.sections
        kinds = {of[s].steps[k].kind for s, k in steps}
        trains = not kinds.isdisjoint({SectionKind.BCKWD, SectionKind.OPT})
        if trains and not self._buckets and self._has_gradients:
            raise NotDataParallel(program=self._program.name)
        facts = {
            "sections": " ".join(of[s].name for s, _ in steps),
            "reduce_on_rdu": str(wish.reduce_on_rdu),
            "data_parallel_mode": wish.mode.value,
        }
        if self.trainer is not None and kinds & {SectionKind.REDUCE, SectionKind.OPT}:
            plan = prepare_parallel(self._device, steps, wish.mode)
            facts["algorithm"] = self.trainer.name
            execute = self.trainer.prepare(plan)
            return PreparedRun(replicas=self, plan=plan, facts=facts, execute=execute)
        if SectionKind.REDUCE not in kinds:
            if kinds >= {SectionKind.BCKWD, SectionKind.OPT} and self._has_gradients:
                self._deviations.tell(
                    "unreduced-replicas",
                    "session.run(data_parallel=True) runs BCKWD and OPT without REDUCE: the "
                    "replicas' weights will diverge",
                )
            return None
        assert self._job is not None  # who has a wish has replicas
        if wish.reduce_on_rdu not in self._reducers:
            reduce = reducer(self._device, self._job.data, on_device=wish.reduce_on_rdu)
            self._reducers[wish.reduce_on_rdu] = _Reducer(self, self._job, reduce)
        plan = prepare_parallel(self._device, steps, wish.mode)
        execute = partial(run_parallel, self._device, plan, self._reducers[wish.reduce_on_rdu])
        return PreparedRun(replicas=self, plan=plan, facts=facts, execute=execute)

    def begin(self, facts: dict[str, str]) -> None:
        """Count a run, and make sure at first that all ranks are about to make the same.

        Args:
            facts: What must be the same on all ranks.

        Raises:
            Disagreement: If it is not.
            DataParallelError: If replicas have failed before.
        """
        if self._job is not None:
            self._job.check()
        self.step += 1
        if self._job is not None and self._job.watchdog is not None:
            self._job.watchdog.at(self.step, -1)
        if self._job is not None and (self.step <= _CHECKED_RUNS or checks_every_run()):
            self._job.agree(f"step {self.step} of session.run", facts)

    def count(self) -> None:
        """Count a run that took place on the device."""
        next(self._device.counters.ticks)

    def explain(self, name: str, error: Exception) -> BaseException:
        """An error that names the rank at fault, for one that an algorithm raised in this step.

        Args:
            name: Name of the algorithm.
            error: What it raised; returned as it is if it is not about communication.
        """
        if self._job is None:
            return error
        return self._job.explain(f"{name} in step {self.step}", error)

    @property
    def _trains(self) -> bool:
        return not self._program.inference

    @property
    def _buckets(self) -> tuple[Bucket, ...]:
        return self._device.buffer_map.buckets

    @property
    def _has_gradients(self) -> bool:
        return any(region.role is Role.GRADIENT for region in self._program.regions)


def _all_wishes() -> dict[tuple[bool, str], Wish]:
    return {
        (on_device, mode.value): Wish(reduce_on_rdu=on_device, mode=mode)
        for on_device in (False, True)
        for mode in Mode
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run with reductions, as the runner sees it: like a plan.

    Args:
        replicas: Whose it is.
        plan: Its plans and reductions.
        facts: What must be the same on all ranks.
        execute: Runs them; on return nothing is under way that the next run would not wait for.
    """

    replicas: Replicas
    plan: ParallelPlan
    facts: dict[str, str]
    execute: Callable[[], None]

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
                self.replicas.begin(self.facts)
            except DataParallelError as error:
                error.add_note(self.plan.state_after(()))
                raise
            self.execute()
            self.replicas.count()


class _Reducer:
    """``emulator.replicas.parallel.Net`` of a job."""

    def __init__(self, replicas: Replicas, job: Job, reduce: Any) -> None:
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


def replicas_of(
    device: Device, pef: str, mode: str | None = None, distlearn_config: Any = None
) -> Replicas:
    """The replicas of a program that is being loaded.

    Args:
        device: The device.
        pef: Path of its PEF.
        mode: ``data_parallel_mode`` of ``trace_graph``; None if any may come.
        distlearn_config: Anything but None or "" asks for replicas, if a launcher has made some.

    Returns:
        The replicas; alone if there is one process only.

    Raises:
        Disagreement: If other replicas load something else.
    """
    job = jobs.current()
    if job is None and dist.is_available() and dist.is_initialized():
        job = jobs.adopt()
    if job is None and distlearn_config:
        job = jobs.start()
    if job is not None and job.one_program:
        return Replicas(device, mode, mesh=job)
    replicas = Replicas(device, mode, None if job is None or job.size == 1 else job)
    if job is None and not device.program.inference:
        _tell_if_unjoined()
    replicas.agree(pef)
    return replicas


def _tell_if_unjoined() -> None:
    """Say once that a launcher has started several processes, each of which trains alone."""
    with suppress(ArgumentError):  # of variables that nobody has asked for
        launch = detect()
        if launch is not None and launch.size > 1:
            tell(
                "lone-replica",
                f"{launch.launcher} has started {launch.size} processes, and this one trains by "
                "itself: give the script --data-parallel (parse_app_args then joins them), or set "
                "up torch.distributed before utils.trace_graph",
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
