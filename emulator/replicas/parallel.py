"""A schedule with reductions in it: device plans and buckets as tasks of the scheduler.

Device steps between two reductions are one plan. Steps that may move (OPT, GRADNORM) are plans of
their own, in every mode: what XLA fuses can change the last bit, and all modes shall
give the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from emulator.device import Device
from emulator.errors import OtherBranch
from emulator.handler_errors import raise_error_of_handler
from emulator.memory.buckets import Bucket, BufferMap
from emulator.plans.footprint import footprint
from emulator.plans.plan import Plan
from emulator.plans.steps import StepKey
from emulator.replicas.comm.protocol import Communicator, ReduceOp
from emulator.replicas.comm.worker import CommThread, Work
from emulator.replicas.schedule import Mode, Task, TaskGraph, execute, prepare
from emulator.trace_settings import wide_types
from pef_schema.program import Program, SectionKind

MOVABLE = frozenset({SectionKind.OPT, SectionKind.GRADNORM})
"""Kinds of steps that follow from reduced gradients alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrReduction:
    """One task: a plan, or the reduction of a bucket.

    Args:
        plan: The plan, None for a reduction.
        bucket: The bucket, None for a plan.
        settle: Whether the device must be idle before the reduction: an earlier plan that
            nothing else waits for may still read the bucket.
        drops: Buffers whose contents are void after it.
    """

    plan: Plan | None = None
    bucket: Bucket | None = None
    settle: bool = False
    drops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """A prepared run of several replicas.

    Args:
        schedule: Its tasks.
        parts: What they are, in the same order.
        writes: Buffers that hold something afterwards.
        drops: Buffers whose contents are void afterwards.
        last_drops: Those of them that are dropped when all is done.
    """

    schedule: TaskGraph
    parts: tuple[PlanOrReduction, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]
    last_drops: tuple[int, ...]

    def state_after(self, ran: Collection[int]) -> str:
        """Say in which state a run that ended early leaves the parameters of its replica.

        Args:
            ran: Indices of the parts that were run.
        """
        updates = [
            i
            for i, part in enumerate(self.parts)
            if part.plan is not None and SectionKind.OPT in part.plan.kinds
        ]
        done = len([i for i in updates if i in ran])
        if done == 0:
            return (
                "No update of this step was made on this rank: its parameters and optimizer states "
                "are those after the last complete step, and can be saved."
            )
        if done == len(updates):
            return "All updates of this step were made on this rank: its parameters can be saved."
        return (
            f"{done} of the {len(updates)} updates of this step were made on this rank: some of "
            "its parameters are a step ahead of the others. Go on from the last checkpoint."
        )


class Net(Protocol):
    """The network as a run sees it: reductions, and the thread that does them."""

    thread: CommThread

    def reduce(self, bucket: Bucket, array: jax.Array) -> jax.Array:
        """Average a bucket over the replicas; called on the communication thread.

        Args:
            bucket: The bucket.
            array: Its contents, which nobody else uses any more.

        Returns:
            The average.
        """
        ...

    def failure(self, bucket: Bucket, error: BaseException) -> BaseException:
        """The error to raise when a bucket could not be reduced."""
        ...


def _divide(program: Program, buffer_map: BufferMap, steps: StepKey) -> list[StepKey]:
    """Divide steps into those that become one task each.

    Device steps between two reductions are one; steps that may move, and reductions, are alone.

    Args:
        program: The program.
        buffer_map: Its buffers, with buckets in use.
        steps: ``(section, step)`` pairs in the order of the PEF.

    Returns:
        The steps of each task; a REDUCE step that has no bucket is in none.
    """
    sections = program.sections
    buckets = {bucket.step for bucket in buffer_map.buckets}
    pieces: list[StepKey] = []
    joins = False
    for section, k in steps:
        kind = sections[section].steps[k].kind
        if kind is SectionKind.REDUCE:
            if (section, k) in buckets:
                pieces.append(((section, k),))
            joins = False
        elif kind in MOVABLE:
            pieces.append(((section, k),))
            joins = False
        elif joins:
            pieces[-1] = (*pieces[-1], (section, k))
        else:
            pieces.append(((section, k),))
            joins = True
    return pieces


def _settles(tasks: Sequence[Task], index: int) -> bool:
    """Whether the task before a reduction that touches its bucket does not write it."""
    (home,) = tasks[index].reads
    for task in reversed(tasks[:index]):
        if home in task.reads | task.writes:
            return not task.net and home not in task.writes
    return True


def prepare_parallel(device: Device, steps: StepKey, mode: Mode) -> ParallelPlan:
    """Divide steps into plans and reductions; compiles the plans.

    Args:
        device: The device with its program, in the variant to prepare for.
        steps: ``(section, step)`` pairs in the order of the PEF.
        mode: What may overlap and overtake.

    Returns:
        What :func:`run_parallel` takes.
    """
    program = device.program
    by_step = {bucket.step: bucket for bucket in device.buffer_map.buckets}
    pieces = _divide(program, device.buffer_map, steps)
    plans = [None if piece[0] in by_step else device.plan(piece) for piece in pieces]
    tasks = [
        _task(program, piece, plan, by_step) for piece, plan in zip(pieces, plans, strict=True)
    ]
    dropped = footprint(program, steps, device.variant).drops
    drops: list[list[int]] = [[] for _ in tasks]
    last: list[int] = []
    for region in sorted(dropped):
        users = [i for i, task in enumerate(tasks) if region in task.reads | task.writes]
        # A task that may move is not a place to drop something that another one still reads.
        moves = any(tasks[i].movable for i in users)
        (last if moves or not users else drops[users[-1]]).append(region)
    parts = tuple(
        PlanOrReduction(bucket=by_step[piece[0]], settle=_settles(tasks, i))
        if plan is None
        else PlanOrReduction(plan=plan, drops=tuple(drops[i]))
        for i, (piece, plan) in enumerate(zip(pieces, plans, strict=True))
    )
    written = {home for task in tasks for home in task.writes}
    return ParallelPlan(
        schedule=prepare(tasks, mode),
        parts=parts,
        writes=tuple(sorted(written - dropped)),
        drops=tuple(sorted(dropped)),
        last_drops=tuple(last),
    )


def _task(
    program: Program, piece: StepKey, plan: Plan | None, by_step: Mapping[tuple[int, int], Bucket]
) -> Task:
    """The task that runs a plan on the device, or where there is none averages a bucket."""
    if plan is None:
        bucket = by_step[piece[0]]
        home = frozenset({bucket.home})
        return Task(name=bucket.name, reads=home, writes=home, net=True)
    return Task(
        name=program.sections[piece[0][0]].name,
        reads=frozenset(plan.reads),
        writes=frozenset((*plan.writes, *plan.drops)),
        movable=plan.kinds <= MOVABLE,
    )


def run_parallel(device: Device, plan: ParallelPlan, net: Net) -> None:
    """Run a prepared schedule; on return no reduction is under way.

    Args:
        device: The device.
        plan: What to run.
        net: The network.

    Raises:
        Exception: What ``net.failure`` makes of a failed reduction, or what a plan raised; with a
            note of the state in which it leaves the parameters.
    """
    hands = _Hands(device, plan, net)
    try:
        execute(plan.schedule, hands)
    except Exception as error:
        error.add_note(plan.state_after(hands.ran))
        raise
    for region in plan.last_drops:
        device.pool.drop(region)


def shadow_parallel(device: Device, plan: ParallelPlan, net: Net) -> None:
    """Take part in a run that others make, without data: reduce zeros, and update as they do.

    Args:
        device: The device.
        plan: What the others run.
        net: The network.

    Raises:
        Exception: As :func:`run_parallel`.
    """
    hands = _Hands(device, plan, net)
    try:
        for index, part in enumerate(plan.parts):
            if part.bucket is not None:
                device.zero_buffer(part.bucket.home)
                hands.wait((hands.start(index),))
            elif part.plan is not None and part.plan.kinds <= MOVABLE:
                hands.run(index)
    except Exception as error:
        error.add_note(plan.state_after(hands.ran))
        raise
    for region in plan.drops:
        device.pool.drop(region)


class _Ticket:
    """A reduction that was handed to the communication thread."""

    __slots__ = ("bucket", "work")

    def __init__(self, bucket: Bucket, work: Work) -> None:
        self.bucket, self.work = bucket, work

    def done(self) -> bool:
        return self.work.done()


class _Hands:
    def __init__(self, device: Device, plan: ParallelPlan, net: Net) -> None:
        self._device, self._parts, self._net = device, plan.parts, net
        self._buffers = device.pool.buffers
        self._failed = False
        self._other: OtherBranch | None = None
        self.ran: set[int] = set()

    def run(self, index: int) -> None:
        part = self._parts[index]
        assert part.plan is not None  # net tasks go to `start`
        self._device.run(part.plan, 0)
        self.ran.add(index)
        for region in part.drops:
            self._buffers[region] = None

    def start(self, index: int) -> _Ticket:
        part, buffers = self._parts[index], self._buffers
        bucket = part.bucket
        assert bucket is not None  # device tasks go to `run`
        if buffers[bucket.home] is None:
            self._device.zero_buffer(bucket.home)
        if part.settle:
            self._settle()
        array = buffers[bucket.home]
        assert isinstance(array, jax.Array)  # only inputs may be anything else

        def reduce() -> None:
            self._refuse_other_branch()
            buffers[bucket.home] = self._net.reduce(bucket, array)

        return _Ticket(bucket, self._net.thread.submit(f"REDUCE {bucket.name}", reduce))

    def _refuse_other_branch(self) -> None:
        """Before a reduction: raise if a branch of this step went another way than the graph.

        Its gradients are of no use to the others. What they are computed by is waited for here in
        any case, on the communication thread.
        """
        if self._device.checks_branches and self._other is None:
            self._other = self._device.other_branch(wait=True)
        if self._other is not None:
            raise self._other

    def _settle(self) -> None:
        of_buckets = {bucket.home for bucket in self._device.buffer_map.buckets}
        for home, buffer in enumerate(self._buffers):
            if home not in of_buckets and isinstance(buffer, jax.Array):
                buffer.block_until_ready()

    def wait(self, tickets: Sequence[_Ticket]) -> None:
        if self._failed:
            return  # what else is under way cannot succeed, and need not be waited for
        try:
            self._net.thread.wait([ticket.work for ticket in tickets])
        except Exception as error:
            raise_error_of_handler(error)
            self._failed = True
            if error is self._other:
                self._device.check_branches(wait=True)  # raises it: it is told with that
            failed = next((t for t in tickets if t.work.error is error), tickets[0])
            explained = self._net.failure(failed.bucket, error)
            if explained is error:
                raise
            raise explained from error


def reducer(
    device: Device,
    communicator: Communicator,
    *,
    on_device: bool,
    shares: Callable[[], int] | None = None,
) -> Callable[[jax.Array], jax.Array]:
    """Choose how the contents of a bucket are averaged.

    Args:
        device: Whose memory holds them.
        communicator: The replicas.
        on_device: Whether to reduce in device memory, or in a copy on the host.
        shares: Tells by how many a sum is divided now: all replicas, or fewer where some of them
            have no data any more; all if None.

    Returns:
        A function of the contents, which it may consume, that gives the average.
    """
    size = communicator.size
    count_now = shares or (lambda: size)

    def average(array: jax.Array) -> jax.Array:
        count = count_now()
        op = ReduceOp.MEAN if count == size else ReduceOp.SUM
        if on_device:
            total = communicator.all_reduce_device(array, op)
            if count == size:
                return total
            with wide_types():
                return total / total.dtype.type(count)
        host = np.array(array, copy=True)
        communicator.all_reduce(host, op)
        if count != size:
            host /= host.dtype.type(count)
        return device.put(host, array.sharding)

    return average
