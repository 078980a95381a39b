"""The emulated device: a program, its memory, and its plans."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from emulator.contract.check import check_contract
from emulator.dtypes import TO_NUMPY
from emulator.errors import NoGradientRegion, NotSeeded, NotWritten, RegionMismatch, UnknownName
from emulator.lowering.index_watch import Watched
from emulator.lowering.section import Variant, starts_as_ones
from emulator.memory.allocator import garbage_given_back, prepare_allocator
from emulator.memory.buckets import BufferMap
from emulator.memory.budget import check_size
from emulator.memory.host_view import writable_view
from emulator.memory.pool import BufferPool
from emulator.plans.failures import run_failure
from emulator.plans.plan import Plan, compile_plan, lower_plan, rebind
from emulator.plans.sharing import SharedExecutables
from emulator.plans.step_choice import StepKey
from emulator.start import first_device
from pef_schema.program import (
    ArginKind,
    OptimizerKind,
    OutputGrad,
    Program,
    Role,
    SectionKind,
)

DEFINED_AT_FIRST = frozenset(
    {Role.GRADIENT, Role.OUTPUT_GRADIENT, Role.OPTIMIZER_STATE, Role.METRIC}
)
"""Roles of regions that have values before anything is written: zeros, and ones at a loss."""


@dataclass(slots=True, kw_only=True)
class DeviceCounters:
    """Counts of the work that a device did since it was opened."""

    compiles: int = 0
    runs: int = 0


class Device:
    """Runs one program.

    Args:
        program: The program to load. Constants, argins and the seed get their
            initial values; weights and inputs are written by the host.
        watched: Indices to look at in every run, by graph: one that is out of range is an
            :class:`~emulator.errors.IndexOutOfRange`. Runs then wait for their results.

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

    def __init__(self, program: Program, watched: Watched | None = None) -> None:
        check_contract(program)
        check_size(program)
        prepare_allocator(program)
        self._watched: Watched = watched or {}
        self.program = program
        self.counters = DeviceCounters()
        self.buffer_map = BufferMap(program)
        self.pool = BufferPool(self.buffer_map)
        self._jax_device: Any = first_device()
        self._sharing = SharedExecutables(program, self.buffer_map)
        self._plans: dict[tuple[StepKey, Variant], Plan] = {}
        self._checked: set[int] = set()
        self._regions = {r.name: i for i, r in enumerate(program.regions)}
        for s in program.symbols:
            if s.grad_region >= 0:  # tensors that share a region share its gradient
                self._regions.setdefault(f"{s.name}__grad", s.grad_region)
        self._symbols = {s.name: s for s in program.symbols}
        self._grad_of = {s.region: s.grad_region for s in program.symbols if s.grad_region >= 0}
        self._output_grads = {
            o.grad_region: (g, o) for g in program.graphs for o in g.outputs if o.grad_region >= 0
        }
        self._seeded: frozenset[int] = frozenset()
        self._ones = True
        self._argin_values = [a.default for a in program.argins]
        self._no_dropout = frozenset(
            a.region
            for a in program.argins
            if a.kind is ArginKind.DROPOUT_RATE and a.default == 0.0
        )
        self.argin_index = {a.name: i for i, a in enumerate(program.argins)}
        self.variant = Variant()
        for i in range(len(program.argins)):
            self._store_argin(i)
        for i, region in enumerate(program.regions):
            if region.segment >= 0:
                data = np.frombuffer(program.segments[region.segment], TO_NUMPY[region.dtype])
                self.write(i, data.reshape(region.shape))
        self._respecialise()

    def use_buckets(self) -> None:
        """Keep gradients in buckets from now on, so that they can be reduced with other replicas.

        Values stay. Plans are made anew, as they are for one kind of memory.
        """
        if self.buffer_map.buckets:
            return
        self.buffer_map.use_buckets()
        if not self.buffer_map.buckets:
            return
        self.pool.grow()
        for region in self.buffer_map.place:
            held = self.pool.buffers[region]
            self.pool.drop(region)
            if held is not None:
                self._store(region, np.array(held, copy=True))
        self._plans.clear()
        self._checked.clear()
        self._respecialise()

    # -- plans --------------------------------------------------------------

    def plan(self, steps: StepKey) -> Plan:
        """The executable for a list of steps; compiles it at first use.

        Args:
            steps: ``(section, step)`` pairs in the order to run.

        Returns:
            The plan for the present variant.
        """
        key = (steps, self.variant)
        found = self._plans.get(key)
        if found is None:
            self._require_seeds(steps)
            found = self._shared(steps) or self._compile(steps)
            self._plans[key] = found
        return found

    def _compile(self, steps: StepKey) -> Plan:
        self.counters.compiles += 1
        with garbage_given_back():
            return compile_plan(
                self.program,
                self.buffer_map,
                steps,
                self.variant,
                self._jax_device,
                self._watched,
            )

    def lower(self, steps: StepKey, variant: Variant | None = None) -> None:
        """Lower steps without compiling or running them, to find what cannot be lowered.

        Args:
            steps: ``(section, step)`` pairs in the order to run.
            variant: What to specialise for, the present variant if None.

        Raises:
            LoweringError: If a node cannot be lowered; it names the node and its line.
            PlanError: If the steps cannot be lowered for another reason.
        """
        lower_plan(self.program, self.buffer_map, steps, variant or self.variant, self._jax_device)

    def _shared(self, steps: StepKey) -> Plan | None:
        """The plan of a section of the same structure, over the memory of this one."""
        found = None if self._watched else self._sharing.places(steps, self.variant)
        if found is None:
            return None
        twin, places = found
        plan = self.plan(tuple((twin, k) for k in range(len(steps))))
        return rebind(plan, places)

    def leave_losses_alone(self) -> None:
        """From now on a backward pass starts from gradients that the host has written alone."""
        self._ones = False
        self._respecialise()

    def _require_seeds(self, steps: StepKey) -> None:
        """Refuse a backward pass that would start from nothing, where losses are left alone."""
        if self._ones:
            return
        for s, k in steps:
            step = self.program.sections[s].steps[k]
            outputs = self.program.graphs[step.graph].outputs if step.graph >= 0 else ()
            grads = {o.grad_region for o in outputs if o.grad_region >= 0}
            read = grads.intersection(step.reads)
            if step.kind is SectionKind.BCKWD and read and not grads & self._seeded:
                names = [o.name for o in outputs if o.grad is OutputGrad.ONES]
                raise NotSeeded(names=names or [o.name for o in outputs if o.grad_region >= 0])

    def is_compiled(self, steps: StepKey) -> bool:
        """Whether there is a plan for these steps in the present variant."""
        return (steps, self.variant) in self._plans

    def run(self, plan: Plan) -> None:
        """Start a plan and return without waiting for it.

        Raises:
            NotWritten: If memory it needs holds no data. Nothing has changed then.
            PlanError: If its executable fails.
        """
        buffers = self.pool.buffers
        if id(plan) not in self._checked:
            self._prepare(plan)
        for region in plan.checks:
            if buffers[region] is None:
                self._require((region,))
        try:
            with jax.enable_x64(True):
                results = plan.call(*[buffers[r] for r in plan.reads])
        except Exception as error:
            raise run_failure(error, plan.kinds) from error
        for region, array in zip(plan.writes, results, strict=True):
            buffers[region] = array
        for region in plan.drops:
            buffers[region] = None
        self.counters.runs += 1

    @contextmanager
    def unchanged_on_error(self) -> Generator[None, None, None]:
        """Put memory and argins back as they were if the body raises.

        What a plan has consumed when its executable itself fails cannot be put back.
        """
        buffers = self.pool.buffers
        kept = buffers.copy()
        others = self._argin_values.copy(), self._seeded, self._no_dropout, self.variant
        try:
            yield
        except BaseException:
            buffers[:] = [
                new if isinstance(old, jax.Array) and old.is_deleted() else old
                for old, new in zip(kept, buffers, strict=True)
            ]
            self._argin_values[:], self._seeded, self._no_dropout, self.variant = others
            self._checked.clear()  # memory that a plan found prepared may be empty again
            raise

    def synchronize(self) -> None:
        """Wait until every run that was started is done."""
        for buffer in self.pool.buffers:
            if isinstance(buffer, jax.Array):
                buffer.block_until_ready()

    def _prepare(self, plan: Plan) -> None:
        """Before a first run: zeros where zeros are meant, an error where data is missing."""
        empty = [home for home in plan.reads if self.pool.buffers[home] is None]
        regions = self.program.regions
        filled = {
            home
            for home in empty
            if home in plan.overwritten
            or regions[self.buffer_map.first_region(home)].role in DEFINED_AT_FIRST
        }
        self._require([home for home in empty if home not in filled])
        for home in sorted(filled):
            self.zero_buffer(home)
        self._checked.add(id(plan))

    def _require(self, homes: Sequence[int]) -> None:
        missing = [self.buffer_map.first_region(h) for h in homes if self.pool.buffers[h] is None]
        if missing:
            role = self.program.regions[missing[0]].role
            names = [
                self.program.regions[r].name
                for r in missing
                if self.program.regions[r].role is role
            ]
            raise NotWritten(names=names, role=role.name.lower().replace("_", " "))

    # -- memory -------------------------------------------------------------

    def region_of(self, name: str) -> int:
        """Region index of a tensor or region name.

        Raises:
            UnknownName: If the program has neither.
        """
        symbol = self._symbols.get(name)
        if symbol is not None:
            return symbol.region
        index = self._regions.get(name)
        if index is None:
            known = [*self._symbols, *self._regions]
            raise UnknownName(name=name, close=difflib.get_close_matches(name, known, 3))
        return index

    def gradient_of(self, name: str) -> int:
        """Region index of a tensor's gradient.

        Raises:
            UnknownName: If the program has no such tensor.
            NoGradientRegion: If it has no gradient.
        """
        symbol = self._symbols.get(name)
        if symbol is not None and symbol.grad_region >= 0:
            return symbol.grad_region
        region = self._grad_of.get(self.region_of(name), -1)
        if region < 0:
            raise NoGradientRegion(name=name)
        return region

    def knows(self, name: str) -> bool:
        """Whether the program has a tensor or region of that name."""
        return name in self._symbols or name in self._regions

    def write(self, region: int, array: np.ndarray, *, name: str = "") -> None:
        """Write a region from the host; the array is copied.

        Args:
            region: Region index.
            array: Data of the region's shape and dtype.
            name: Name to use in an error, the region's own if empty.

        Raises:
            RegionMismatch: If shape or dtype differ.
        """
        target = self.program.regions[region]
        self.check(region, array.shape, array.dtype, name=name)
        self._store(region, np.array(array, order="C", copy=True))
        if target.role is Role.OUTPUT_GRADIENT and region not in self._seeded:
            self._seeded = self._seeded | {region}
            self._respecialise()

    def overwrite(self, region: int, array: np.ndarray, *, name: str = "") -> None:
        """Write a region that no run under way uses; inside a bucket this copies no neighbours.

        Args:
            region: Region index.
            array: Data of the region's shape and dtype.
            name: Name to use in an error, the region's own if empty.

        Raises:
            RegionMismatch: If shape or dtype differ.
        """
        place = self.buffer_map.place.get(region)
        flat = None if place is None else self.pool.buffers[place[0].home]
        if place is None or not isinstance(flat, jax.Array):
            self.write(region, array, name=name)
            return
        self.check(region, array.shape, array.dtype, name=name)
        bucket, position = place
        start = bucket.offsets[position]
        writable_view(flat)[start : start + array.size] = array.reshape(-1)

    def check(
        self, region: int, shape: tuple[int, ...], dtype: np.dtype, *, name: str = ""
    ) -> None:
        """Raise ``RegionMismatch`` unless data of this form fits a region."""
        target = self.program.regions[region]
        wanted = TO_NUMPY[target.dtype]
        if tuple(shape) != target.shape or dtype != wanted:
            raise RegionMismatch(
                name=name or target.name,
                found=f"shape {list(shape)} {dtype.name}",
                wanted=f"shape {list(target.shape)} {wanted.name}",
            )

    def zero(self, region: int) -> None:
        """Write zeros to a region."""
        target = self.program.regions[region]
        self._store(region, np.zeros(target.shape, TO_NUMPY[target.dtype]))

    def _store(self, region: int, array: np.ndarray) -> None:
        """Place an array that nobody else will change."""
        place = self.buffer_map.place.get(region)
        if place is None:
            self.pool.put(region, self.put(array))
            return
        bucket, position = place
        old = self.pool.buffers[bucket.home]
        flat = np.zeros(bucket.size, bucket.dtype) if old is None else np.array(old, copy=True)
        start = bucket.offsets[position]
        flat[start : start + array.size] = array.reshape(-1)
        self.pool.put(bucket.home, self.put(flat))

    def zero_buffer(self, home: int) -> None:
        """Write zeros to a whole buffer: a region's own, or a bucket's."""
        shape, dtype = self.buffer_map.form(home)
        self.pool.put(home, self.put(np.zeros(shape, dtype)))

    def read(self, region: int) -> np.ndarray:
        """Copy a region to the host; waits for runs that write it.

        Raises:
            NotWritten: If it holds no data.
        """
        buffer = self.pool.buffers[self.buffer_map.home(region)]
        target = self.program.regions[region]
        if buffer is None:
            output = self._output_grads.get(region)
            if output is not None and starts_as_ones(*output, self.variant):
                return np.ones(target.shape, TO_NUMPY[target.dtype])
            if target.role in DEFINED_AT_FIRST:
                return np.zeros(target.shape, TO_NUMPY[target.dtype])
            self._require((region,))
        place = self.buffer_map.place.get(region)
        if place is None:
            return np.array(buffer, copy=True)
        bucket, position = place
        start = bucket.offsets[position]
        count = target.nbytes // target.dtype.itemsize
        return np.asarray(buffer)[start : start + count].reshape(target.shape).copy()

    def put(self, array: np.ndarray) -> jax.Array:
        """Take an array that nobody else will change to the device."""
        with jax.enable_x64(True):
            return jax.device_put(array, self._jax_device)  # pyright: ignore[reportUnknownMemberType]  # jax types it in part

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
            data = np.array([int(value) & 0xFFFFFFFF, 0], np.uint32)
        else:
            data = np.array(value, np.float64)
        self.pool.put(argin.region, self.put(data))

    def _respecialise(self) -> None:
        by_region = {a.region: i for i, a in enumerate(self.program.argins)}
        idle = frozenset(
            i
            for i, o in enumerate(self.program.optimizers)
            if o.kind is OptimizerKind.SGD
            and self._argin_values[by_region[dict(o.argins)["momentum"]]] == 0.0
        )
        self.variant = Variant(
            seeded=self._seeded,
            no_momentum=idle,
            no_dropout=self._no_dropout,
            ones=self._ones,
        )
