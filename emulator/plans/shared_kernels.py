"""Operations that differ in a number alone share a kernel.

A loop that a model unrolls reads ``x[:, 0]``, ``x[:, 1]``, … and adds 0.1, 0.2, …: XLA:CPU makes a
kernel for each, which takes tens of milliseconds, though it makes equal kernels once. Here such
numbers become values that are read while the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var

from emulator.kernels.unfused import in_memory
from emulator.plans.fused_operations import Fusing, fusing_of, is_joining
from emulator.plans.traced import FlatPlan, Forms, variables

LEAST_SHARING = 24
"""Fewer operations keep their numbers: a kernel of a microsecond makes each of them in every run.
The limit is above ``emulator.kernels.slices.GROUP``: a sum is made of so many slices."""

_ON_NUMBERS = frozenset(
    {
        *("add", "sub", "mul", "div", "rem", "pow", "max", "min", "broadcast_in_dim"),
        *("eq", "ne", "ge", "gt", "le", "lt"),
    }
)
"""Operations whose operands may be numbers that the program holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A plan whose operations share kernels.

    Args:
        flat: Its operations.
        tables: Arrays that they read beside the arguments, by variable.
    """

    flat: FlatPlan
    tables: dict[Any, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """An operation and the numbers in which it may differ from others.

    Args:
        eqn: The operation.
        numbers: Where a slice begins on each axis, or the bytes of operands that are numbers.
    """

    eqn: Any
    numbers: tuple[int, ...] | tuple[bytes, ...]


def with_shared_kernels(
    flat: FlatPlan, arguments: Sequence[Any], forms: Forms, made_once: Container[Any]
) -> Shared:
    """Turn numbers in which many operations differ into values.

    The operations are slices of one array that begin elsewhere, and operations of one form on
    numbers. What is computed does not change. Slices of joined arrays stay, since XLA reads what
    was joined, and so do operations that are parts of few kernels, as of one sum.

    Args:
        flat: A plan for one chip.
        arguments: What it takes.
        forms: Numbers of operations.
        made_once: Values that are made in memory though XLA could fuse them.

    Returns:
        The plan; the same one where too few operations would share a kernel.
    """
    divided = _with_parts(flat, forms)
    groups: dict[Hashable, list[_Numbered]] = {}
    sources = {id(eqn): (eqn, form) for eqn, form in flat.sources.values()}
    known = {*flat.sources, *[v for eqn in flat.eqns if is_joining(eqn) for v in eqn.outvars]}
    for eqn, form in (*sources.values(), *zip(divided.eqns, divided.forms, strict=True)):
        kind, numbers = _numbers_of(eqn, form)
        if numbers and (eqn.primitive.name != "slice" or eqn.invars[0] not in known):
            groups.setdefault(kind, []).append(_Numbered(eqn=eqn, numbers=numbers))
    kernels = _Kernels(divided, made_once)
    large = [
        group
        for group in groups.values()
        if len({one.numbers for one in group}) >= LEAST_SHARING
        and len({kernels.of(one.eqn) for one in group}) >= LEAST_SHARING
    ]
    argument = next((v for v in arguments if _holds_numbers(v.aval)), None)
    if not large or argument is None:
        return Shared(flat=flat, tables={})
    return _Sharing(divided, argument).shared(large, forms)


class _Kernels:
    """An estimate of which operations are one kernel; the first of several counts for a value.

    Args:
        flat: A plan.
        made_once: Values that are made in memory though XLA could fuse them.
    """

    def __init__(self, flat: FlatPlan, made_once: Container[Any]) -> None:
        alone = [eqn for eqn in flat.eqns if fusing_of(eqn) is Fusing.ALONE]
        written = {*variables(flat.results), *[v for eqn in alone for v in variables(eqn.invars)]}
        inner = {v for eqn in flat.eqns for v in eqn.outvars if v not in made_once} - written
        self._reader: dict[Any, Any] = {}
        for eqn in flat.eqns:
            for v in inner.intersection(variables(eqn.invars)):
                self._reader.setdefault(v, eqn.outvars[0])

    def of(self, eqn: Any) -> Any:
        """What operations of one kernel have in common: the value that it writes."""
        path = [eqn.outvars[0]]
        while path[-1] in self._reader:
            path.append(self._reader[path[-1]])
        self._reader.update(dict.fromkeys(path[:-1], path[-1]))
        return path[-1]


def _with_parts(flat: FlatPlan, forms: Forms) -> FlatPlan:
    """The same plan, in which an array that is split into many equal parts is sliced."""
    if not any(_is_many(eqn) for eqn in flat.eqns):
        return flat
    eqns: list[Any] = []
    for eqn in flat.eqns:
        eqns += _as_slices(eqn) if _is_many(eqn) else [eqn]
    return replace(flat, eqns=eqns, forms=[forms.of(eqn) for eqn in eqns])


def _is_many(eqn: Any) -> bool:
    return (
        eqn.primitive.name == "split"
        and len(eqn.outvars) >= LEAST_SHARING
        and len({*eqn.params["sizes"]}) == 1
    )


def _as_slices(split: Any) -> Iterator[Any]:
    axis, size = split.params["axis"], split.params["sizes"][0]
    (array,) = split.invars
    for k, v in enumerate(split.outvars):
        starts = [size * k if i == axis else 0 for i in range(array.aval.ndim)]
        limits = [start + n for start, n in zip(starts, v.aval.shape, strict=True)]
        params = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": None}
        yield split.replace(primitive=lax.slice_p, params=params, outvars=[v])


def _holds_numbers(form: Any) -> bool:
    return form.dtype.kind in "iuf" and 0 not in form.shape


def _numbers_of(eqn: Any, form: int) -> tuple[Hashable, tuple[int, ...] | tuple[bytes, ...]]:
    """What an operation has in common with those that differ in numbers alone, and its numbers."""
    name = eqn.primitive.name
    if name == "slice" and {*(eqn.params["strides"] or ())} <= {1}:
        return (eqn.invars[0], eqn.outvars[0].aval.shape), eqn.params["start_indices"]
    literals = _literals_of(eqn) if name in _ON_NUMBERS else {}
    numbers = [np.asarray(literal.val, literal.aval.dtype) for literal in literals.values()]
    if any(number.shape for number in numbers):
        return form, ()
    return (form, *literals), tuple([number.tobytes() for number in numbers])


def _literals_of(eqn: Any) -> dict[int, Any]:
    """Operands that are literals, by their place."""
    return {k: a for k, a in enumerate(eqn.invars) if isinstance(a, Literal)}


class _Sharing:
    """Changes a plan.

    Args:
        flat: The plan.
        argument: One of its arguments, which holds numbers.
    """

    def __init__(self, flat: FlatPlan, argument: Any) -> None:
        self._flat, self._argument = flat, argument
        self._first: list[Any] = []
        self._counted: list[Any] = []
        self._tables: dict[Any, np.ndarray[Any, Any]] = {}
        self._traced: dict[Hashable, ClosedJaxpr] = {}

    def shared(self, groups: Iterable[Sequence[_Numbered]], forms: Forms) -> Shared:
        """The plan with the numbers of groups as values."""
        instead: dict[int, list[Any]] = {}
        for group in groups:
            columns: list[list[Any]] = []
            for k, column in enumerate(zip(*[one.numbers for one in group], strict=True)):
                columns.append(self._values(column, _type_of(group[0].eqn, k)))
            for one, numbers in zip(group, zip(*columns, strict=True), strict=True):
                instead[id(one.eqn)] = self._on_values(one.eqn, numbers)
        sources = self._flat.sources
        moved = {id(eqn): eqn for eqn, _ in sources.values() if id(eqn) in instead}
        eqns = [*self._first]
        for eqn in (*moved.values(), *self._flat.eqns):
            eqns += instead.get(id(eqn), [eqn])
        flat = FlatPlan(
            eqns=eqns,
            forms=[forms.of(eqn) for eqn in eqns],
            sources={v: known for v, known in sources.items() if id(known[0]) not in moved},
            results=self._flat.results,
        )
        return Shared(flat=flat, tables=self._tables)

    def _values(self, numbers: Sequence[Any], dtype: Any) -> list[Any]:
        """A variable for each of some numbers; None for each if all are equal."""
        distinct = [*dict.fromkeys(numbers)]
        if len(distinct) == 1:
            return [None] * len(numbers)
        values = [self._count(k) for k in range(len(distinct))]
        if distinct != [*range(len(distinct))]:
            whole = isinstance(distinct[0], int)
            table = np.array(distinct, dtype) if whole else np.frombuffer(b"".join(distinct), dtype)
            array = Var(cast("Any", jax).typeof(table))
            self._tables[array] = table
            values = [self._add(_at, [array, k], self._first) for k in values]
        known = dict(zip(distinct, values, strict=True))
        return [known[number] for number in numbers]

    def _on_values(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Operations that make what an operation makes, with values for some of its numbers."""
        eqns: list[Any] = []
        if eqn.primitive.name == "slice":
            sizes = eqn.outvars[0].aval.shape
            starts = tuple(eqn.params["start_indices"])
            is_value = tuple([v is not None for v in values])

            def part(array: Any, *others: Any) -> Any:
                rest = iter(others)
                places = [
                    next(rest) if value else np.int32(start)
                    for start, value in zip(starts, is_value, strict=True)
                ]
                return _slice(array, places, sizes)

            reads = [eqn.invars[0], *[v for v in values if v is not None]]
            fixed = tuple([-1 if value else n for n, value in zip(starts, is_value, strict=True)])
            self._add(part, reads, eqns, like=eqn, key=(fixed, sizes))
            return eqns
        rest = iter(values)
        reads: list[Any] = []
        for atom in eqn.invars:
            value = next(rest) if isinstance(atom, Literal) else None
            if value is not None and eqn.primitive.name != "broadcast_in_dim":
                value = self._spread(value, eqn.outvars[0].aval.shape, eqns)
            reads.append(atom if value is None else value)
        return [*eqns, eqn.replace(invars=reads)]

    def _spread(self, number: Any, shape: tuple[int, ...], eqns: list[Any]) -> Any:
        def spread(number: Any) -> Any:
            return cast("Any", lax).broadcast(number, shape)

        return self._add(spread, [number], eqns, key=shape)

    def _count(self, k: int) -> Any:
        """A number from 0 on, which XLA does not know."""
        if not self._counted:
            self._counted.append(self._add(_zero, [self._argument], self._first))
        while len(self._counted) <= k:
            self._counted.append(self._add(_next, [self._counted[-1]], self._first))
        return self._counted[k]

    def _add(
        self,
        function: Callable[..., Any],
        reads: Sequence[Any],
        eqns: list[Any],
        *,
        like: Any = None,
        key: Hashable = (),
    ) -> Any:
        """Add what a function of variables traces to, and return what it makes.

        Args:
            function: Makes one array.
            reads: Its arguments.
            eqns: Operations that grow.
            like: The operation whose result it makes; a new one if None.
            key: What the function depends on beside its arguments.
        """
        forms = tuple([v.aval for v in reads])
        known = function.__code__, forms, key
        if known not in self._traced:
            structs = [jax.ShapeDtypeStruct(form.shape, form.dtype) for form in forms]
            self._traced[known] = cast("Any", jax).make_jaxpr(function)(*structs)
        jaxpr = self._traced[known].jaxpr
        names: dict[Any, Any] = dict(zip(jaxpr.invars, reads, strict=True))
        (last,) = jaxpr.outvars
        if like is not None:
            names[last] = like.outvars[0]
        for eqn in jaxpr.eqns:
            for v in eqn.outvars:
                names.setdefault(v, Var(v.aval))
            atoms = [a if isinstance(a, Literal) else names[a] for a in eqn.invars]
            source = eqn.source_info if like is None else like.source_info
            outs = [names[v] for v in eqn.outvars]
            eqns.append(eqn.replace(invars=atoms, outvars=outs, source_info=source))
        return names[last]


def _type_of(eqn: Any, number: int) -> Any:
    """The type of an operation's numbers."""
    if eqn.primitive.name == "slice":
        return np.int32
    return [*_literals_of(eqn).values()][number].aval.dtype


def _at(array: Any, place: Any) -> Any:
    return lax.reshape(_slice(array, [place], [1]), ())


def _slice(array: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
    return lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)


def _zero(array: Any) -> Any:
    """0, made of a number that XLA does not know: it would compute what it knows."""
    first = lax.slice(array, [0] * array.ndim, [1] * array.ndim)
    number = lax.convert_element_type(lax.reshape(first, ()), np.int32)
    return in_memory(lax.clamp(np.int32(0), number, np.int32(0)))


def _next(number: Any) -> Any:
    return in_memory(number + np.int32(1))
