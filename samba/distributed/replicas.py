"""The replicas of one loaded program: what ``session.run(data_parallel=True)`` does."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist

from emulator.device import Device
from emulator.held_signals import HELD
from emulator.kernels.target import kernels_here, take_the_same_kernels
from emulator.memory.buckets import Bucket
from emulator.plans.steps import StepKey
from emulator.replicas.parallel import (
    ParallelPlan,
    prepare_parallel,
    reducer,
    run_parallel,
    shadow_parallel,
)
from emulator.replicas.schedule import Mode
from pef_schema.program import ArginKind, Role, SectionKind
from samba.distributed import job as jobs
from samba.distributed.environment import detect
from samba.distributed.errors import NotDataParallel, NotJoinable
from samba.distributed.job import Job
from samba.distributed.mesh import pef_key
from samba.distributed.replica_runs import (
    Announcement,
    Joint,
    PreparedRun,
    Reducer,
    Trainer,
    Wish,
    all_wishes,
)
from samba.distributed.settings import checks_every_run
from samba.errors import ArgumentError
from samba.profiler import PROFILER
from samba.support.deviations import Deviations, tell

_CHECKED_RUNS = 2
"""Runs before which replicas always compare notes; what differs usually does from the start."""
_CHUNK = 64 << 20
_OF_DROPOUT = frozenset({ArginKind.DROPOUT_RATE, ArginKind.DROPOUT_SEED})
_SAME_EVERYWHERE = frozenset({Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
"""Roles of regions of which rank 0's values hold for all."""


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
        self._reducers: dict[bool, Reducer] = {}
        self.trainer: Trainer | None = None
        self.joint: Joint | None = None
        self._shadowed: tuple[tuple[StepKey, Wish], ParallelPlan] | None = None
        self._wishes = all_wishes()
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
        texts = self._job.gather("utils.trace_graph", here)
        take_the_same_kernels([kernels.decode() for kernels in texts])

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
        self._wishes = all_wishes()  # others than before, so that runners prepare again

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
            filled = np.array([self._device.pool.buffers[r] is not None for r in regions], np.uint8)
            job.together("setting tensors", lambda control: control.broadcast(filled))
            for region, is_filled in zip(regions, filled, strict=True):
                self._broadcast(job, region, bool(is_filled))

    def _broadcast(self, job: Job, region: int, filled: bool) -> None:
        device, name = self._device, self._program.regions[region].name
        if not filled:
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
            wish: How the script wants it run.

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
            facts["algorithm"] = self.trainer.name
            plan = prepare_parallel(self._device, steps, wish.mode)
            execute = self.trainer.prepare(plan)
        elif SectionKind.REDUCE in kinds:
            assert self._job is not None  # a wish is made for replicas alone
            plan = prepare_parallel(self._device, steps, wish.mode)
            execute = partial(run_parallel, self._device, plan, self._net(self._job, wish))
        else:
            if kinds >= {SectionKind.BCKWD, SectionKind.OPT} and self._has_gradients:
                self._deviations.tell(
                    "unreduced-replicas",
                    "session.run(data_parallel=True) runs BCKWD and OPT without REDUCE: the "
                    "replicas' weights will diverge",
                )
            return None
        return PreparedRun(
            begin=self._begin,
            count=lambda: next(self._device.counters.ticks),
            plan=plan,
            facts=facts,
            execute=execute,
            steps=steps,
            wish=wish,
        )

    def _net(self, job: Job, wish: Wish) -> Reducer:
        on_device = wish.reduce_on_rdu
        if on_device not in self._reducers:
            reduce = reducer(
                self._device, job.data, on_device=on_device, shares=lambda: self._shares
            )
            self._reducers[on_device] = Reducer(job, lambda: self.step, reduce)
        return self._reducers[on_device]

    @property
    def _shares(self) -> int:
        return self.size if self.joint is None else self.joint.shares

    def _begin(self, run: PreparedRun) -> None:
        """Count a run, and make sure at first that all ranks are about to make the same."""
        if self._job is None:
            self.step += 1
            return
        self._job.check()
        self._at_next_step(self._job)
        if self.joint is not None:
            self.joint.announce(self._announcement(run))
            return
        operation = f"step {self.step} of session.run"
        if self.trainer is None:  # an algorithm may let ranks make different numbers of steps
            self._job.enter(operation)
        if self.step <= _CHECKED_RUNS or checks_every_run():
            self._job.agree(operation, run.facts)

    # -- where the data of some ranks ends early ----------------------------------------

    @contextmanager
    def joined(self, joint: Joint) -> Iterator[None]:
        """Announce every run in the body, so that ranks whose data has ended take part.

        Args:
            joint: Who announces.

        Raises:
            NotJoinable: If an algorithm takes the place of the reductions.
            DataParallelError: If not all ranks come here, with the same arguments.
        """
        if self.trainer is not None:
            raise NotJoinable(algorithm=self.trainer.name)
        joint.agree()
        self.joint = joint
        try:
            yield
        finally:
            self.joint = None

    def new_joint(self, *, by_initial_size: bool, throws: bool) -> Joint | None:
        """Who announces runs to ranks whose data has ended; None if there are no others.

        Args:
            by_initial_size: Whether a sum of gradients is divided by the number of all ranks.
            throws: Whether it is an error that data ends early.
        """
        if self._job is None:
            return None
        return Joint(self._job, by_initial_size=by_initial_size, throws=throws)

    def _announcement(self, run: PreparedRun) -> Announcement:
        values = {index: self._device.argin(index) for index in self._update_argins}
        return Announcement(
            facts=run.facts,
            steps=run.steps,
            reduce_on_rdu=run.wish.reduce_on_rdu,
            mode=run.wish.mode.value,
            argins=values,
        )

    @functools.cached_property
    def _update_argins(self) -> tuple[int, ...]:
        argins = enumerate(self._program.argins)
        return tuple(index for index, argin in argins if argin.kind not in _OF_DROPOUT)

    def shadow(self, announced: Announcement) -> None:
        """Take part in a run of others without data: zeros are reduced, and weights updated.

        Args:
            announced: The run.

        Raises:
            DataParallelError: If a replica is gone, or does not answer in time.
        """
        assert self._job is not None  # only replicas announce runs
        wish = self._wishes[announced.reduce_on_rdu, announced.mode]
        key = (announced.steps, wish)
        with HELD:
            for index, value in announced.argins.items():
                if self._device.argin(index) != value:
                    self._device.set_argin(index, value)
            if self._shadowed is None or self._shadowed[0] != key:
                self._shadowed = key, prepare_parallel(self._device, announced.steps, wish.mode)
            self._at_next_step(self._job)
            shadow_parallel(self._device, self._shadowed[1], self._net(self._job, wish))

    def _at_next_step(self, job: Job) -> None:
        self.step += 1
        if job.watchdog is not None:
            job.watchdog.at(self.step, -1)

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
    with suppress(ArgumentError):  # an error in variables that this script does not use
        launch = detect()
        if launch is not None and launch.size > 1:
            tell(
                "lone-replica",
                f"a launcher (variables of {launch.launcher}) has started {launch.size} processes, "
                "and this one trains by itself: give the script --data-parallel (parse_app_args "
                "then joins them), or set up torch.distributed before utils.trace_graph",
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
