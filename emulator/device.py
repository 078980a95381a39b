"""The emulated device: a program, its memory, and its plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice, starmap
from typing import Any

import jax
import numpy as np

from emulator.contract.check import check_contract
from emulator.device_memory import DEFINED_AT_FIRST, DeviceMemory, Transaction
from emulator.dtypes import TO_NUMPY
from emulator.errors import OtherBranch
from emulator.held_signals import HELD
from emulator.lowering.branch_checks import failed_branches
from emulator.lowering.index_watch import Watched
from emulator.lowering.section import starts_as_ones
from emulator.lowering.variant import Variant
from emulator.memory.allocator import garbage_given_back, prepare_allocator
from emulator.memory.budget import check_size
from emulator.mesh.chips import Chips
from emulator.op_facts.names import checked_branches
from emulator.plans.calls import SLOW
from emulator.plans.footprint import SharedExecutables
from emulator.plans.kept_plans import KeptPlans
from emulator.plans.plan import Plan, compile_plan, lower_plan, rebind
from emulator.plans.steps import StepKey, check_seeds, run_failure
from emulator.start import refuse_in_child, watch_forks
from emulator.trace_settings import SET, SETTING
from pef_schema.errors import SambaError
from pef_schema.garbage import SELDOM_COLLECTED
from pef_schema.program import ArginKind, Program, Role

MOST_PLANS = 256
"""Plans that a device keeps beside those of its sections; a script may ask for ever new lists."""

_exhaust = deque[Any](maxlen=0).extend
"""Takes everything from an iterator, in C."""

_BETWEEN_REPLICAS = 0x9E3779B9
"""Between the seeds of neighbouring replicas: odd, so that no two of them have the same."""


class Device(DeviceMemory):
    """Runs one program.

    Args:
        program: The program to load. Constants, argins and the seed get their
            initial values; weights and inputs are written by the host.
        watched: Indices to look at in every run, by graph: one that is out of range is an
            :class:`~emulator.errors.IndexOutOfRange`. Runs then wait for their results.
        chips: Where to run it, on one chip if None.

    Raises:
        CannotRun: If the program has parts that no device can run, such as unknown operations.
        OutOfMemory: If it needs more memory than the device may take.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> Device(nothing).counters
        DeviceCounters(compiles=0, runs=0)
    """

    def __init__(
        self, program: Program, watched: Watched | None = None, chips: Chips | None = None
    ) -> None:
        check_contract(program)
        prepare_allocator(program)
        self._watched: Watched = watched or {}
        super().__init__(program, chips)
        check_size(program, self.placement.chips)
        self._sharing = SharedExecutables(program, self.placement)
        self._kept_plans = KeptPlans(program, self.placement.chips)
        self._plans: dict[tuple[StepKey, Variant], Plan] = {}
        self._checked: dict[int, Plan] = {}
        self._output_grads = {
            o.grad_region: (g, o) for g in program.graphs for o in g.outputs if o.grad_region >= 0
        }
        self._seeded: frozenset[int] = frozenset()
        self._ones = True
        self._argin_values = [a.default for a in program.argins]
        self._replica = 0
        self._no_dropout = frozenset(
            a.region
            for a in program.argins
            if a.kind is ArginKind.DROPOUT_RATE and a.default == 0.0
        )
        self._branches = checked_branches(program)
        self._branches_seen: dict[int, Any] = {}
        self.checks_branches = bool(self._branches)
        """Whether runs look at branches of ``forward``: :meth:`check_branches` may raise then."""
        for region in self._branches:
            self.zero(region)
        self.argin_index = {a.name: i for i, a in enumerate(program.argins)}
        self.variant = Variant()
        for i in range(len(program.argins)):
            self._store_argin(i)
        for i, region in enumerate(program.regions):
            if region.segment >= 0:
                data = np.frombuffer(program.segments[region.segment], TO_NUMPY[region.dtype])
                self.write(i, data.reshape(region.shape))
        self._respecialise()
        watch_forks(self)

    def use_buckets(self) -> None:
        """Keep gradients in buckets from now on, so that they can be reduced with other replicas.

        Values stay. Plans are made again, as they are for one kind of memory.
        """
        if self.buffer_map.buckets:
            return
        with HELD:
            self.buffer_map.use_buckets()
            if not self.buffer_map.buckets:
                return
            self.pool.grow()
            for region in self.buffer_map.place:
                array = self.pool.buffers[region]
                self.pool.drop(region)
                if array is not None:
                    self._store(region, np.array(array, copy=True))
            self._plans.clear()
            self._checked.clear()
            self._respecialise()

    def use_replica(self, rank: int) -> None:
        """Draw random numbers of a replica of its own from now on; streams start again.

        Args:
            rank: Number of the replica; 0 draws what a single device draws.
        """
        self._replica = rank
        for index, argin in enumerate(self.program.argins):
            if argin.kind is ArginKind.DROPOUT_SEED:
                self._store_argin(index)

    # -- plans --------------------------------------------------------------

    def plan(self, steps: StepKey, *, whole: bool = False) -> Plan:
        """The plan for a list of steps; compiles it at first use.

        Args:
            steps: ``(section, step)`` pairs in the order to run.
            whole: Whether it has to be one executable.

        Returns:
            The plan for the present variant.
        """
        key = (steps, self.variant)
        if self.is_compiled(steps, whole=whole):
            return self._plans[key]
        if not self._ones:
            check_seeds(self.program, steps, self._seeded)
        plan = self._shared_plan(steps, whole) or self._compile(steps, whole)
        while len(self._plans) >= self.most_plans:
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = plan
        return plan

    @property
    def most_plans(self) -> int:
        """How many plans are kept: all sections one by one, and as many lists of them."""
        return MOST_PLANS + len(self.program.sections)

    def _compile(self, steps: StepKey, whole: bool) -> Plan:
        refuse_in_child("compiling for the device")
        self.counters.compiles += 1
        with garbage_given_back(), SELDOM_COLLECTED:
            plan = compile_plan(
                self.program,
                self.buffer_map,
                steps,
                self.variant,
                self.placement,
                self._watched,
                whole=whole,
                kept=self._kept_plans,
                meanwhile=lambda buffers: self.fill_ahead(buffers.takes, buffers.overwritten),
            )
        self.counters.note_plan(plan.making)
        return plan

    def plans(self) -> tuple[tuple[StepKey, Variant, Plan], ...]:
        """The plans that there are, the oldest first, with their steps and what they are for."""
        return tuple([(steps, variant, plan) for (steps, variant), plan in self._plans.items()])

    def lower(self, steps: StepKey, variant: Variant | None = None, *, platform: str = "") -> Any:
        """Lower steps without compiling or running them, to find what cannot be lowered.

        Args:
            steps: ``(section, step)`` pairs in the order to run.
            variant: What to specialise for, the present variant if None.
            platform: What to lower for, such as ``"cuda"``: there need be no such device here.
                That of the device if empty.

        Returns:
            A ``jax.stages.Lowered``; ``as_text()`` of it is StableHLO.

        Raises:
            LoweringError: If a node cannot be lowered; it names the node and its line.
            PlanError: If the steps cannot be lowered for another reason.
        """
        return lower_plan(
            self.program,
            self.buffer_map,
            steps,
            variant or self.variant,
            self.placement,
            platform=platform,
        )

    def _shared_plan(self, steps: StepKey, whole: bool) -> Plan | None:
        """The plan of a section of the same structure, over the memory of this one."""
        pair = None if self._watched else self._sharing.places(steps, self.variant)
        if pair is None:
            return None
        twin, places = pair
        plan = self.plan(tuple((twin, k) for k in range(len(steps))), whole=whole)
        return rebind(plan, places)

    def leave_losses_alone(self) -> None:
        """From now on a backward pass starts from gradients that the host has written alone."""
        self._ones = False
        self._respecialise()

    def is_compiled(self, steps: StepKey, *, whole: bool = False) -> bool:
        """Whether there is a plan for these steps in the present variant.

        Args:
            steps, whole: As for :meth:`plan`.
        """
        plan = self._plans.get((steps, self.variant))
        return plan is not None and not (whole and len(plan.executables) > 1)

    def run(self, plan: Plan, count: int = 1) -> None:
        """Start a plan and return without waiting for it.

        A handler of a signal runs before it or after it: it either took place or did not.

        Args:
            plan: The plan.
            count: How many runs that is: 0 for a part of one.

        Raises:
            NotWritten: If memory it needs holds no data. Nothing has changed then.
            LostMemory: If memory it needs is lost, or was lost now because its executable failed.
            PlanError: If its executable fails without having consumed anything.
        """
        buffers = self.pool.buffers
        if id(plan) not in self._checked:
            self._prepare(plan)
        for region in plan.checks:
            if buffers[region] is None:
                self.require_buffers((region,))
        wide = SETTING() if plan.wide else None
        arrays = plan.take(buffers)
        try:
            if plan.wide:
                SET(True)
            # One call of C functions: from the first donated array to the last stored result there
            # is no bytecode between which the handler of a signal could run.
            results = starmap(plan.call, (arrays,))
            values = chain.from_iterable(chain(results, plan.voids))
            _exhaust(
                chain(
                    map(buffers.__setitem__, plan.stores, values),
                    islice(self.counters.ticks, count),
                )
            )
        except Exception as error:
            # An error of this project, such as that another process is gone, says more than what
            # was lost by it.
            if self.find_lost() and not isinstance(error, SambaError):
                raise self.lost.error(self.lost.all()) from error
            explained = run_failure(error, plan.kinds)
            if explained is error:
                raise
            raise explained from error
        finally:
            if plan.wide:
                SET(wide)
            if SLOW.under_way:
                SLOW.end()

    def unchanged_on_error(self) -> Transaction:
        """Put memory and argins back as they were if the body raises before it commits.

        What a plan has consumed when its executable itself fails cannot be put back.
        """
        return Transaction(self)

    def state(self) -> tuple[Any, ...]:
        """What :meth:`put_back` takes: buffers and argins as they are."""
        argins = self._argin_values.copy()
        return self.pool.buffers.copy(), argins, self._seeded, self._no_dropout, self.variant

    def put_back(self, state: tuple[Any, ...]) -> None:
        """Make buffers and argins those of an earlier :meth:`state`, where they still exist."""
        old_buffers, argins, self._seeded, self._no_dropout, self.variant = state
        buffers = self.pool.buffers
        buffers[:] = [
            new if isinstance(old, jax.Array) and old.is_deleted() else old
            for old, new in zip(old_buffers, buffers, strict=True)
        ]
        self._argin_values[:] = argins
        self._checked.clear()  # memory that a plan found prepared may be empty again

    # -- memory that is lost --------------------------------------------------

    def find_lost(self, *, wait: bool = False) -> bool:
        """After an error: take note of memory that an executable has consumed or left undefined.

        Args:
            wait: Whether to wait for runs under way, and look whether they fail.

        Returns:
            Whether there is any.
        """
        gone = self.lost.find(wait=wait)
        if gone:
            self._checked.clear()
            for index, argin in enumerate(self.program.argins):
                if argin.region in gone and argin.kind is not ArginKind.DROPOUT_SEED:
                    self._store_argin(index)  # its value is known
            for region in self._branches:
                if region in gone:
                    self.zero(region)
        return bool(self.lost.among(gone))

    def other_branch(self, *, wait: bool = False) -> OtherBranch | None:
        """The error that :meth:`check_branches` would raise and tell; None if there is none.

        Args:
            wait: Whether to wait for runs under way. Else only those are read that are done.
        """
        return failed_branches(self._branches, self.pool.buffers, self._branches_seen, wait=wait)

    def check_branches(self, *, wait: bool = False) -> None:
        """Read what runs have found of branches of ``forward``; each failure is told once.

        Args:
            wait: Whether to wait for runs under way. Else only those are read that are done.

        Raises:
            OtherBranch: If a branch has gone the other way than the graph was traced.
        """
        error = self.other_branch(wait=wait)
        if error is not None:
            for region in self._branches:
                self.zero(region)
            raise error

    def synchronize(self) -> None:
        """Wait until every run that was started is done.

        Raises:
            OtherBranch: As :meth:`check_branches`.
        """
        self._wait(self.pool.buffers)

    def wait_for(self, plan: Plan) -> None:
        """Wait until the last run of a plan is done; others may still be under way.

        Args:
            plan: It was the last to run.
        """
        buffers = self.pool.buffers
        self._wait([buffers[home] for home in plan.writes])

    def _wait(self, buffers: Iterable[Any]) -> None:
        try:
            for buffer in buffers:
                if isinstance(buffer, jax.Array):
                    buffer.block_until_ready()
        except RuntimeError as error:  # a run has failed, which shows only now
            self.raise_if_lost(error)
            raise
        if self.checks_branches:
            self.check_branches(wait=True)

    def raise_if_lost(self, error: BaseException) -> None:
        """Turn an error of jax into one that says which memory is lost, if any is.

        Args:
            error: What reading or waiting has raised.

        Raises:
            LostMemory: If memory is lost.
        """
        if self.find_lost(wait=True):
            raise self.lost.error(self.lost.all()) from error

    def _prepare(self, plan: Plan) -> None:
        self.fill(plan.reads, plan.overwritten)
        if len(self._checked) >= self.most_plans:
            self._checked.clear()  # they are looked at again
        self._checked[id(plan)] = plan

    # -- memory -------------------------------------------------------------

    def write(self, region: int, array: np.ndarray, *, name: str = "") -> None:
        """Write a region from the host, as :meth:`DeviceMemory.write` does.

        The gradient of an output that was written replaces its default from then on.
        """
        super().write(region, array, name=name)
        role = self.program.regions[region].role
        if role is Role.OUTPUT_GRADIENT and region not in self._seeded:
            self._seeded = self._seeded | {region}
            self._respecialise()

    def read(self, region: int) -> np.ndarray:
        """Copy a region to the host; waits for runs that write it.

        Raises:
            NotWritten: If it holds no data.
            LostMemory: If its data are lost.
        """
        array = self.read_uncounted(region)
        self.counters.from_device += array.nbytes
        return array

    def read_uncounted(self, region: int) -> np.ndarray:
        """:meth:`read` for a caller who counts the bytes by other means."""
        if self.checks_branches:
            self.check_branches(wait=True)
        try:
            return self._read(region)
        except RuntimeError as error:  # a run has failed, which shows only now
            self.raise_if_lost(error)
            raise

    def _read(self, region: int) -> np.ndarray:
        buffer = self.pool.buffers[self.buffer_map.home(region)]
        target = self.program.regions[region]
        if buffer is None:
            if self.is_lost(region):
                self.require((region,))
            output = self._output_grads.get(region)
            if output is not None and starts_as_ones(*output, self.variant):
                return np.ones(target.shape, TO_NUMPY[target.dtype])
            if target.role in DEFINED_AT_FIRST:
                return self.at_first(region)
            self.require_buffers((region,))
        return self.copy_out_of(buffer, region)

    # -- argins -------------------------------------------------------------

    def argin(self, index: int) -> float:
        """Present value of an argin."""
        return self._argin_values[index]

    def set_argin(self, index: int, value: float) -> None:
        """Set a hyperparameter; compiles nothing but what ``Variant`` is specialised for.

        Args:
            index: Position in ``program.argins``.
            value: Its new value; a seed restarts the random stream.
        """
        self._argin_values[index] = value
        self._store_argin(index)
        argin = self.program.argins[index]
        if argin.region in self._no_dropout and value != 0.0:
            self._no_dropout -= {argin.region}
            self._respecialise()
        elif argin.kind is ArginKind.MOMENTUM:
            self._respecialise()

    def _store_argin(self, index: int) -> None:
        argin = self.program.argins[index]
        value = self._argin_values[index]
        if argin.kind is ArginKind.DROPOUT_SEED:
            key = (int(value) + self._replica * _BETWEEN_REPLICAS) % 2**32
            data = np.array([key, 0], np.uint32)
        else:
            data = np.array(value, np.float64)
        self.pool.put(argin.region, self.put(data, self.placement.sharding(argin.region)))

    def _respecialise(self) -> None:
        by_region = {a.region: i for i, a in enumerate(self.program.argins)}
        idle = frozenset(
            i
            for i, o in enumerate(self.program.optimizers)
            for name, region in o.argins
            if name == "momentum" and self._argin_values[by_region[region]] == 0.0
        )
        self.variant = Variant(
            seeded=self._seeded,
            no_momentum=idle,
            no_dropout=self._no_dropout,
            ones=self._ones,
            checks=frozenset(self._branches),
        )
