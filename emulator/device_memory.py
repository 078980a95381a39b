"""The memory of a device: regions by name and number, written from the host."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

import jax
import numpy as np

from emulator.counters import DeviceCounters
from emulator.dtypes import TO_NUMPY
from emulator.errors import NoGradientRegion, NotWritten, RegionMismatch, UnknownName
from emulator.held_signals import HELD
from emulator.memory.buckets import BufferMap
from emulator.memory.host_view import is_host_memory, writable_view
from emulator.memory.pool import BufferPool, LostBuffers, Placement, UnreachablePool
from emulator.memory.zeros import Zeros
from emulator.mesh.chips import Chips, one_chip
from emulator.start import refuse_in_child
from emulator.trace_settings import wide_types
from pef_schema.optimizer_states import first_values
from pef_schema.program import Program, Role

DEFINED_AT_FIRST = frozenset(
    {Role.GRADIENT, Role.OUTPUT_GRADIENT, Role.OPTIMIZER_STATE, Role.METRIC}
)
"""Roles of regions that have values before anything is written: zeros, except for ones at a loss
and states that start from another number (``StateRule.first``)."""


class DeviceMemory:
    """An array for each region of a program.

    Args:
        program: A verified program.
        chips: Where it runs, on one chip if None.

    Attributes:
        program: The program.
        buffer_map: Which buffer holds which region.
        placement: What each chip has of it.
        pool: The buffers.
        lost: Those of them whose contents are lost.
        counters: Counts of the device's work.
    """

    def __init__(self, program: Program, chips: Chips | None = None) -> None:
        self.program = program
        self.counters = DeviceCounters()
        self.buffer_map = BufferMap(program)
        self.placement = Placement(buffer_map=self.buffer_map, chips=chips or one_chip())
        self.pool = BufferPool(self.buffer_map)
        self.lost = LostBuffers(program, self.buffer_map, self.pool)
        self._regions = {r.name: i for i, r in enumerate(program.regions)}
        for s in program.symbols:
            if s.grad_region >= 0:  # tensors that share a region share its gradient
                self._regions.setdefault(f"{s.name}__grad", s.grad_region)
        self._symbols = {s.name: s for s in program.symbols}
        self._grad_of = {s.region: s.grad_region for s in program.symbols if s.grad_region >= 0}
        self._first = {r: v for o in program.optimizers for r, v in first_values(o).items()}

    def forked(self) -> None:
        """In a forked child there is no device: whatever needs its memory is refused."""
        self.pool = UnreachablePool(self.pool)

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
        self.check(region, array.shape, array.dtype, name=name)
        self._store(region, np.array(array, order="C", copy=True))

    def overwrite(self, region: int, array: np.ndarray, *, name: str = "") -> None:
        """Write a region that no run under way uses.

        Inside a bucket this copies no neighbours, where device memory is the host's.

        Args:
            region: Region index.
            array: Data of the region's shape and dtype.
            name: Name to use in an error, the region's own if empty.

        Raises:
            RegionMismatch: If shape or dtype differ.
        """
        place = self.buffer_map.place.get(region)
        flat = None if place is None else self.pool.buffers[place[0].home]
        if place is None or not isinstance(flat, jax.Array) or not is_host_memory(flat):
            self.write(region, array, name=name)
            return
        self.check(region, array.shape, array.dtype, name=name)
        bucket, position = place
        start = bucket.offsets[position]
        self.counters.to_device += array.nbytes
        writable_view(flat)[start : start + array.size] = array.reshape(-1)

    def check(
        self, region: int, shape: tuple[int, ...], dtype: np.dtype, *, name: str = ""
    ) -> None:
        """Raise ``RegionMismatch`` unless data of this form fits a region."""
        target = self.program.regions[region]
        kind = TO_NUMPY[target.dtype]
        if tuple(shape) != target.shape or dtype != kind:
            raise RegionMismatch(
                name=name or target.name,
                found=f"shape {list(shape)} {dtype.name}",
                wanted=f"shape {list(target.shape)} {kind.name}",
            )

    def zero(self, region: int) -> None:
        """Write zeros to a region."""
        target = self.program.regions[region]
        self._store(region, np.zeros(target.shape, TO_NUMPY[target.dtype]))

    def at_first(self, region: int) -> np.ndarray:
        """What a region holds before anything is written: zeros, or the first values of a state."""
        target = self.program.regions[region]
        with np.errstate(over="ignore"):  # a float16 state may start from infinity
            first = self._first.get(region, 0.0)
            # The two parts of a complex parameter have states of their own.
            value = complex(first, first) if target.dtype.is_complex else first
            return np.full(target.shape, value, TO_NUMPY[target.dtype])

    def reset(self, region: int) -> None:
        """Write to a region what it holds before anything is written."""
        self._store(region, self.at_first(region))

    def _store(self, region: int, array: np.ndarray) -> None:
        """Place an array that nobody else will change."""
        place = self.buffer_map.place.get(region)
        if place is None:
            self._put_in(region, array)
            return
        bucket, position = place
        old = self.pool.buffers[bucket.home]
        flat = np.zeros(bucket.size, bucket.dtype) if old is None else np.array(old, copy=True)
        start = bucket.offsets[position]
        flat[start : start + array.size] = array.reshape(-1)
        self._put_in(bucket.home, flat)

    def zero_buffer(self, home: int) -> None:
        """Write zeros to a whole buffer: a region's own, or a bucket's."""
        self._put_in(home, np.zeros(*self.buffer_map.form(home)))

    def fill_buffers(self, homes: Collection[int]) -> None:
        """Write to some buffers what they hold before anything is written.

        Args:
            homes: The buffers.
        """
        forms = {home: self.buffer_map.form(home) for home in homes if home not in self._first}
        zeros = Zeros(forms.values())
        for home in sorted(homes):
            if home in forms:
                self._put_in(home, zeros.view(*forms[home]))
            else:
                self.reset(home)

    def fill(self, homes: Iterable[int], overwritten: frozenset[int]) -> None:
        """Before a first run of a plan: give first values to what is empty.

        Args:
            homes: The buffers that it reads.
            overwritten: Those whose contents it does not use.

        Raises:
            NotWritten: If one needs data that nobody has written.
            LostMemory: If its data are lost.
        """
        empty = [home for home in homes if self.pool.buffers[home] is None]
        self._refuse_lost([home for home in empty if home not in overwritten])
        filled = self._defined_at_first(empty, overwritten)
        self.require_buffers([home for home in empty if home not in filled])
        self.fill_buffers(filled)

    def fill_ahead(self, homes: Iterable[int], overwritten: frozenset[int]) -> None:
        """:meth:`fill`, where what cannot be filled is left to it, as a plan is still made."""
        empty = [home for home in homes if self.pool.buffers[home] is None]
        if not self.lost.among(empty):
            self.fill_buffers(self._defined_at_first(empty, overwritten))

    def _defined_at_first(self, empty: Iterable[int], overwritten: frozenset[int]) -> set[int]:
        """Those of some empty buffers that a run may start from without data."""
        regions = self.program.regions
        return {
            home
            for home in empty
            if home in overwritten
            or regions[self.buffer_map.first_region(home)].role in DEFINED_AT_FIRST
        }

    def is_lost(self, region: int) -> bool:
        """Whether a region's contents are lost, and were not written again since."""
        return self.buffer_map.home(region) in self.lost

    def require(self, regions: Sequence[int]) -> None:
        """Make sure that regions hold data.

        Raises:
            NotWritten: If one never did.
            LostMemory: If one does no more.
        """
        self.require_buffers([self.buffer_map.home(region) for region in regions])

    def require_buffers(self, homes: Sequence[int]) -> None:
        """:meth:`require` for buffers."""
        missing = [self.buffer_map.first_region(h) for h in homes if self.pool.buffers[h] is None]
        self._refuse_lost(homes)
        if missing:
            role = self.program.regions[missing[0]].role
            names = [
                self.program.regions[r].name
                for r in missing
                if self.program.regions[r].role is role
            ]
            raise NotWritten(names=names, role=role.name.lower().replace("_", " "))

    def _refuse_lost(self, homes: Iterable[int]) -> None:
        if lost := self.lost.among(homes):
            raise self.lost.error(lost)

    def _put_in(self, home: int, array: np.ndarray) -> None:
        self.pool.put(home, self.put(array, self.placement.sharding(home)))

    def copy_out_of(self, buffer: Any, region: int) -> np.ndarray:
        """A region's data, from all chips that have a part of it.

        Args:
            buffer: The buffer that holds it.
            region: The region.

        Returns:
            An array of its own.
        """
        place = self.buffer_map.place.get(region)
        if place is None:
            return self.placement.chips.whole(buffer, self.program.regions[region].name)
        target = self.program.regions[region]
        bucket, position = place
        start = bucket.offsets[position]
        count = target.nbytes // target.dtype.itemsize
        return np.asarray(buffer)[start : start + count].reshape(target.shape).copy()

    def put(self, array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        """Take an array that nobody else will change to the device.

        Args:
            array: The array.
            sharding: Where its parts go, see :class:`~emulator.memory.pool.Placement`.
        """
        refuse_in_child("writing device memory")
        self.counters.to_device += array.nbytes
        with wide_types():
            return self.placement.chips.put(array, sharding)


class _Memory(Protocol):
    """What can be put back."""

    def state(self) -> tuple[Any, ...]:
        """What it holds."""
        ...

    def put_back(self, state: tuple[Any, ...]) -> None:
        """Make it hold that again."""
        ...


class Transaction:
    """A context that puts memory back if an error, or the handler of a signal, leaves it early.

    Args:
        memory: Whose contents are changed.
    """

    __slots__ = ("_before", "_memory")

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._before: tuple[Any, ...] | None = None

    def __enter__(self) -> Transaction:
        self._before = self._memory.state()
        return self

    def commit(self) -> None:
        """The changes are complete: errors from here on leave them as they are."""
        self._before = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._before is not None:
            with HELD:
                self._memory.put_back(self._before)
