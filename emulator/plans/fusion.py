"""Which values of a function are made in memory, once.

XLA:CPU fuses a cheap operation into each of its readers, and so on into theirs: each of them
computes it again. Here a value that several kernels want is looked at before XLA runs: it
is made once if computing it takes longer than writing it and reading it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun

from emulator.kernels.unfused import in_memory
from emulator.plans.fused_operations import (
    Fusing,
    fusing_of,
    is_partial,
    is_turning,
    may_turn,
    weight_of,
)
from emulator.plans.shared_kernels import with_shared_kernels
from emulator.plans.traced import FlatPlan, Forms, bytes_of, flattened, variables

_MOST_WEIGHT = 8
"""Additions up to which two kernels may each make a value: they read it no faster."""

_MOST_KERNELS = 2
"""Kernels that may each make a value of more than one light operation."""

_WRITTEN = 2
"""A value that is written moves twice its bytes: its lines of the cache are read first."""

_MEMORY = 0
"""The number of what reads a value from memory. A kernel that would read memory column by column,
were the value fused into it, has a negative number; all others have positive ones."""

_MANY = 8
"""Of so many kernels it does not matter how many more there are."""

_MOST_OPERANDS = 32
"""How many values in memory one kernel reads at most. LLVM takes seconds for a kernel that reads
hundreds, as a long sum does; the parts of a sum share a kernel."""

_Kernels = frozenset[int]
"""The kernels that want a value."""

_NONE: _Kernels = frozenset()
_FROM_MEMORY: _Kernels = frozenset([_MEMORY])


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Plans one function: what each value takes to be made, then which kernels want it.

    Args:
        flat: The function.
    """

    def __init__(self, flat: FlatPlan) -> None:
        self._steps = [(eqn, fusing_of(eqn)) for eqn in flat.eqns]
        self._sources = flat.sources
        self._results = {*variables(flat.results)}
        self._weights = [weight_of(eqn) for eqn in flat.eqns]
        self._numbers = count(1)
        self._remakes = self._find_remakes()
        self._cut = self._find_cuts()

    def chosen(self) -> set[Any]:
        """Values that are made once; each is looked at when all of its readers are known."""
        readers: dict[Any, _Kernels] = dict.fromkeys(self._results, _FROM_MEMORY)
        chosen: set[Any] = set()
        for number in reversed(range(len(self._steps))):
            eqn, fusing = self._steps[number]
            # Of a value that is split, each part is made for its own readers.
            kernels = max([readers.pop(v, _NONE) for v in eqn.outvars], key=len)
            if fusing is Fusing.READER:
                once = len(eqn.outvars) == 1 and self._is_better_once(number, kernels)
                if once:
                    chosen.add(eqn.outvars[0])
                if once or _MEMORY in kernels:  # what writes it is one of those that make it
                    others = _NONE if once else kernels - _FROM_MEMORY
                    kernels = others | self._own_kernel()
            else:
                kernels = self._own_kernel()
            for place, v in enumerate(eqn.invars):
                if not isinstance(v, Literal):
                    wants = self._read(eqn, fusing, place, kernels)
                    readers[v] = _joined(readers.get(v, _NONE), wants)
        return chosen

    def _read(self, eqn: Any, fusing: Fusing, place: int, kernels: _Kernels) -> _Kernels:
        """Which kernels want an operand of an operation that some kernels make."""
        if fusing is Fusing.ALONE:
            return self._turned(_FROM_MEMORY) if may_turn(eqn, place) else _FROM_MEMORY
        if eqn.outvars[0].aval.shape and not eqn.invars[place].aval.shape:
            return self._own_kernel()  # XLA makes a number before it is spread
        return self._turned(kernels) if is_turning(eqn) else kernels

    def _is_better_once(self, number: int, kernels: _Kernels) -> bool:
        """Whether a value takes less time if it is made once, in memory, and read from there."""
        (v,) = self._steps[number][0].outvars
        remake = self._remakes[v]
        if v in self._cut:
            return True
        if len(kernels) < 2:
            return False
        if not self._weights[number] and (
            _MEMORY not in kernels or (remake is not None and not remake.weight)
        ):
            return False  # it computes nothing: what it reads is looked at instead
        if remake is None or (len(kernels) > _MOST_KERNELS and remake.weight > 1):
            return True
        size, read = bytes_of([v]), sum(remake.reads.values())
        # It lies in memory anyway, or a kernel would read with gaps all that it is made of.
        if min(kernels) <= _MEMORY:
            return read >= size
        return len(kernels) * read > read + (_WRITTEN + len(kernels)) * size

    def _find_remakes(self) -> dict[Any, _Remake | None]:
        """What it takes to make each value that XLA can fuse; None where that is too much."""
        in_memory = set(self._results)
        for eqn, fusing in self._steps:
            if fusing is Fusing.ALONE:
                in_memory.update(variables(eqn.invars))
        remakes: dict[Any, _Remake | None] = {}
        for number, (eqn, fusing) in enumerate(self._steps):
            if fusing is Fusing.READER:
                remake = self._remake(number, remakes, in_memory)
                remakes.update(dict.fromkeys(eqn.outvars, remake))
        return remakes

    def _remake(
        self, number: int, before: Mapping[Any, _Remake | None], in_memory: set[Any]
    ) -> _Remake | None:
        eqn, _ = self._steps[number]
        operations = {number} if self._weights[number] else set[int]()
        reads: dict[Any, int] = {}
        for v in variables(eqn.invars):
            if v in self._sources:
                continue
            known = before.get(v)
            is_number = bool(eqn.outvars[0].aval.shape) and not v.aval.shape
            if v not in before or is_number or (v in in_memory and (known is None or known.weight)):
                more = {v: bytes_of(eqn.outvars[:1] if is_partial(eqn) else [v])}
            elif known is None:
                return None
            else:
                operations |= known.operations
                more = known.reads
            for read, size in more.items():
                reads[read] = min(bytes_of([read]), reads.get(read, 0) + size)
        weight = sum(self._weights[n] for n in operations)
        if weight > _MOST_WEIGHT:
            return None
        return _Remake(operations=frozenset(operations), weight=weight, reads=reads)

    def _find_cuts(self) -> set[Any]:
        """Values without which a kernel would read too many others."""
        operands: dict[Any, frozenset[Any]] = dict.fromkeys(self._sources, frozenset())
        cuts: set[Any] = set()
        for eqn, fusing in self._steps:
            if fusing is Fusing.READER and len(eqn.outvars) == 1:
                reads = [operands.get(v, {v}) for v in variables(eqn.invars)]
                read = frozenset[Any]().union(*reads)
                if len(read) > _MOST_OPERANDS:
                    cuts.update(eqn.outvars)
                else:
                    operands[eqn.outvars[0]] = read
        return cuts

    def _own_kernel(self) -> _Kernels:
        return frozenset([next(self._numbers)])

    def _turned(self, kernels: _Kernels) -> _Kernels:
        """As many kernels that read memory column by column."""
        return frozenset([-next(self._numbers) for _ in kernels])


def _joined(first: _Kernels, second: _Kernels) -> _Kernels:
    """The kernels of both. Of many a few are kept, and first those that read from memory."""
    joined = first | second
    if len(joined) <= _MANY:
        return joined
    few = sorted(joined)[:_MANY]
    return frozenset([*few, _MEMORY] if _MEMORY in joined else few)


_HOLDING = {
    "jit": ("jaxpr",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
}
"""Parameters with functions that XLA compiles for themselves, by operation."""


def planned(traced: ClosedJaxpr, *, sharing: bool = True) -> ClosedJaxpr:
    """Keep XLA from fusing a value into several kernels where it is better made once, in memory.

    Args:
        traced: What is to be compiled for the CPU.
        sharing: Whether operations that differ in a number alone are to share a kernel; not where
            arrays are divided among chips.

    Returns:
        The same, with a call of nothing, which XLA does not fuse, behind each of these values, in
        loops and branches, too. Calls that XLA inlines are opened. Functions with effects stay.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def read_twice(x):
        ...     h = jnp.cos(x)
        ...     return h.sum(0), h.max(1)
        >>> plan = planned(jax.make_jaxpr(read_twice)(jnp.ones((2, 2))))
        >>> [eqn.primitive.name for eqn in plan.jaxpr.eqns]
        ['cos', 'jit', 'reduce_sum', 'reduce_max']
    """
    return _Rewriting().changed(traced, sharing=sharing)


class _Rewriting:
    def __init__(self) -> None:
        self._forms = Forms()
        self._functions: dict[int, tuple[ClosedJaxpr, ClosedJaxpr]] = {}
        self._calls: dict[Any, Any] = {}

    def changed(self, function: ClosedJaxpr, *, sharing: bool = False) -> ClosedJaxpr:
        """A function with its values made once; the same one again for the same one."""
        pair = self._functions.get(id(function))
        if pair is None:
            jaxpr = function.jaxpr
            result = function
            if not jaxpr.effects:
                result = self._with_calls(function, sharing=sharing)
            pair = self._functions[id(function)] = function, result
        return pair[1]

    def _with_calls(self, function: ClosedJaxpr, *, sharing: bool) -> ClosedJaxpr:
        jaxpr = function.jaxpr
        flat = flattened(jaxpr, self._forms, whole=True)
        chosen = made_in_memory(flat)
        tables: dict[Any, Any] = {}
        if sharing:
            shared = with_shared_kernels(flat, jaxpr.invars, self._forms, chosen)
            if shared.flat is not flat:
                flat, tables = shared.flat, shared.tables
                chosen = made_in_memory(flat)
        once: dict[Any, Any] = {}
        eqns = [*{id(eqn): eqn for eqn, _ in flat.sources.values()}.values()]
        for eqn in flat.eqns:
            reads = [once.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
            eqns.append(self._with_functions(eqn.replace(invars=reads)))
            for v in eqn.outvars:
                if v in chosen:
                    once[v] = Var(v.aval)
                    eqns.append(self._call(v, once[v], eqn.source_info))
        results = [once.get(a, a) if isinstance(a, Var) else a for a in flat.results]
        constants = [*jaxpr.constvars, *tables]
        changed = jaxpr.replace(eqns=eqns, outvars=results, constvars=constants)
        return ClosedJaxpr(changed, [*function.consts, *tables.values()])

    def _with_functions(self, eqn: Any) -> Any:
        """An operation whose functions are changed, too."""
        params = dict(eqn.params)
        for name in _HOLDING.get(eqn.primitive.name, ()):
            inner = params[name]
            params[name] = (
                self.changed(inner)
                if isinstance(inner, ClosedJaxpr)
                else tuple([self.changed(branch) for branch in inner])
            )
        return eqn.replace(params=params)

    def _call(self, v: Any, once: Any, source: Any) -> Any:
        """The call of nothing that makes a value once; those of one type share a function."""
        call = self._calls.get(v.aval)
        if call is None:
            form = jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
            (call,) = cast("Any", jax).make_jaxpr(in_memory)(form).jaxpr.eqns
            self._calls[v.aval] = call
        return call.replace(invars=[v], outvars=[once], source_info=source)


def jitted_as_planned(function: ClosedJaxpr, *, sharing: bool = True, **settings: Any) -> Any:
    """Plan a function for XLA:CPU.

    Args:
        function: A plan or a part of one.
        sharing: As for :func:`planned`.
        settings: Arguments of ``jax.jit``.

    Returns:
        A jitted function of arrays.
    """
    operations = cast("Any", jaxpr_as_fun)(planned(function, sharing=sharing))

    def run(*arrays: jax.Array) -> Any:
        return tuple(operations(*arrays))

    return cast("Any", jax).jit(run, **settings)


def trace_planned(function: ClosedJaxpr, donated: int, where: jax.sharding.Sharding) -> Any:
    """Plan a function for XLA:CPU and trace it again.

    Args:
        function: A plan or a part of one.
        donated: How many of its arguments, the first ones, it consumes.
        where: The device that runs it.

    Returns:
        A ``jax.stages.Traced``.
    """
    jitted = jitted_as_planned(
        function, donate_argnums=tuple(range(donated)), keep_unused=True, out_shardings=where
    )
    return jitted.trace(*[shape_of(v, where) for v in function.jaxpr.invars])


def shape_of(v: Any, where: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """The shape and type of a traced value that lies on a device."""
    form = v.aval
    return jax.ShapeDtypeStruct(form.shape, form.dtype, weak_type=form.weak_type, sharding=where)
