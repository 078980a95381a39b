"""Which values of a function are made in memory, once.

XLA:CPU fuses a cheap operation into each of its readers, and so on into theirs: each of them
computes it anew. Here a value that several kernels want is looked at before XLA is: what takes more
than writing it and reading it back is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from jax.extend.core import Literal

from emulator.plans.fusion.operations import (
    Fusing,
    fusing_of,
    is_moving,
    is_partial,
    is_turning,
    may_turn,
    weight_of,
)
from emulator.plans.traced.flat import FlatPlan
from emulator.plans.traced.operations import bytes_of, variables

__all__ = ["MOST_KERNELS", "MOST_PLACES", "MOST_WEIGHT", "made_in_memory"]

MOST_WEIGHT = 8
"""Additions up to which two kernels may each make a value: they read it no faster."""

MOST_KERNELS = 2
"""Kernels that may each make a value of more than one light operation."""

MOST_PLACES = 16
"""Places up to which one kernel may want a value: the sixteen slices of a reduction in groups
(``emulator/kernels/folding.py``)."""

_WRITTEN = 2
"""A value that is written moves twice its bytes: its lines of the cache are read first."""

_MEMORY = 0
"""The number of what reads a value from memory. A kernel that would read memory column by column,
were the value fused into it, has a negative number; all others have positive ones."""

_MANY = 8
"""Of so many kernels it does not matter how many more there are."""

_Places = Mapping[int, frozenset[int]]
"""Where an element of a value is wanted: places by kernel, both numbered."""

_NOWHERE: _Places = {}
_FROM_MEMORY: _Places = {_MEMORY: frozenset([0])}


@dataclass(frozen=True, slots=True)
class _Remake:
    """What a kernel does that makes a value for itself.

    Args:
        operations: Those that compute, by number.
        weight: How many additions take as long as they do.
        reads: Bytes that it reads of values in memory.
    """

    operations: frozenset[int]
    weight: int
    reads: Mapping[Any, int]


def made_in_memory(flat: FlatPlan) -> set[Any]:
    """Choose the values that are made once, in memory, though XLA could fuse them.

    A value that one kernel wants is fused into it. If two want it, each makes it where that takes
    a few light operations and moves no more memory. What is computed by more than one light
    operation is never made three times.

    Args:
        flat: Operations of a function, each behind those it reads from.

    Returns:
        Results of its operations.
    """
    return _Planner(flat).chosen()


class _Planner:
    """Plans one function: what it takes to make each value, then who wants it.

    Args:
        flat: The function.
    """

    def __init__(self, flat: FlatPlan) -> None:
        makers = {v: eqn for eqn in flat.eqns for v in eqn.outvars}
        fusing = [fusing_of(eqn, makers) for eqn in flat.eqns]
        self._steps = [*zip(flat.eqns, fusing, strict=True)]
        self._sources = flat.sources
        self._results = {*variables(flat.results)}
        self._weights = [weight_of(eqn) for eqn in flat.eqns]
        self._numbers = count(1)
        self._remakes = self._found_remakes()

    def chosen(self) -> set[Any]:
        """Values that are made once; each is looked at when all of its readers are known."""
        wanted: dict[Any, _Places] = dict.fromkeys(self._results, _FROM_MEMORY)
        chosen: set[Any] = set()
        for number in reversed(range(len(self._steps))):
            eqn, fusing = self._steps[number]
            if fusing is Fusing.ALONE:
                for number, v in enumerate(eqn.invars):
                    if not isinstance(v, Literal):
                        turns = may_turn(eqn, number)
                        places = self._turned(_FROM_MEMORY) if turns else _FROM_MEMORY
                        wanted[v] = _joined(wanted.get(v, _NOWHERE), places)
                continue
            made = eqn.outvars[0]
            # Of the parts of a split value, each is made for its own readers.
            places = max([wanted.pop(v, _NOWHERE) for v in eqn.outvars], key=len)
            is_one = len(eqn.outvars) == 1
            if fusing is Fusing.READER and is_one and self._is_better_once(made, number, places):
                chosen.add(made)
                places = self._own_kernel()
            elif fusing is Fusing.ROOT:
                places = self._own_kernel()
            elif _MEMORY in places:  # a kernel that writes it is one of those that make it
                others = {kernel: p for kernel, p in places.items() if kernel != _MEMORY}
                places = {**others, **self._own_kernel()}
            for v in variables(eqn.invars):
                wanted[v] = _joined(wanted.get(v, _NOWHERE), self._read(eqn, v, places))
        return chosen

    def _read(self, eqn: Any, v: Any, places: _Places) -> _Places:
        """Where an operation that is made at some places wants what it reads."""
        if eqn.outvars[0].aval.shape and not v.aval.shape:
            return self._own_kernel()  # XLA makes a number before it is spread
        if is_turning(eqn):
            return self._turned(places)
        return self._moved(places) if is_moving(eqn, v) else places

    def _is_better_once(self, v: Any, number: int, places: _Places) -> bool:
        """Whether a value takes less time if it is made once, in memory, and read from there."""
        kernels, remake = len(places), self._remakes[v]
        if not self._weights[number] and not (
            _MEMORY in places and (remake is None or remake.weight)
        ):
            return False
        if max(map(len, places.values()), default=0) > MOST_PLACES:
            return True
        if kernels < 2:
            return False
        if remake is None or (kernels > MOST_KERNELS and remake.weight > 1):
            return True
        size, read = bytes_of([v]), sum(remake.reads.values())
        if min(places) <= _MEMORY:  # it is written anyway
            return read >= size
        return kernels * read > read + (_WRITTEN + kernels) * size

    def _found_remakes(self) -> dict[Any, _Remake | None]:
        """What it takes to make each value that XLA can fuse; None where that is too much."""
        in_memory = set(self._results)
        for eqn, fusing in self._steps:
            if fusing is Fusing.ALONE:
                in_memory.update(variables(eqn.invars))
        found: dict[Any, _Remake | None] = {}
        for number, (eqn, fusing) in enumerate(self._steps):
            if fusing is Fusing.READER:
                remake = self._remake(number, found, in_memory)
                found.update(dict.fromkeys(eqn.outvars, remake))
        return found

    def _remake(
        self, number: int, found: Mapping[Any, _Remake | None], in_memory: set[Any]
    ) -> _Remake | None:
        eqn, _ = self._steps[number]
        operations = {number} if self._weights[number] else set[int]()
        reads: dict[Any, int] = {}
        for v in variables(eqn.invars):
            if v in self._sources:
                continue
            known = found.get(v)
            is_read = v not in found or (v in in_memory and (known is None or known.weight > 0))
            if is_read:
                part = eqn.outvars[:1] if is_partial(eqn) else [v]
                reads[v] = max(reads.get(v, 0), min(bytes_of(part), bytes_of([v])))
            elif known is None:
                return None
            else:
                operations |= known.operations
                reads.update(known.reads)
        weight = sum(self._weights[n] for n in operations)
        if weight > MOST_WEIGHT:
            return None
        return _Remake(operations=frozenset(operations), weight=weight, reads=reads)

    def _own_kernel(self) -> _Places:
        return {next(self._numbers): frozenset([0])}

    def _turned(self, places: Iterable[int]) -> _Places:
        return {-next(self._numbers): frozenset([0]) for _ in places}

    def _moved(self, places: _Places) -> _Places:
        return {
            kernel: frozenset([next(self._numbers) for _ in found])
            for kernel, found in places.items()
        }


def _joined(first: _Places, second: _Places) -> _Places:
    if not first or not second:
        return first or second
    if len(first) >= _MANY and (min(first) <= _MEMORY or min(second) > _MEMORY):
        return first
    return {
        kernel: first.get(kernel, frozenset()) | second.get(kernel, frozenset())
        for kernel in dict.fromkeys((*first, *second))
    }
