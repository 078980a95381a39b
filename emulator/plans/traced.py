"""What is asked of a plan that jax has traced: sizes, weights, equal operations, and its flat form.

A PEF says the shapes of all values, but not what a lowering makes in between: two values of 2^45
numbers each may meet in a table of 2^90. XLA ends the process where such a size overflows, so that
it is looked for before XLA sees it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import Sharding

from pef_schema.limits import LIMITS


class OversizedResult(ValueError):
    """An operation of jax makes something of an impossible size.

    Attributes:
        primitive: The operation.
        shape: What it makes.
    """

    def __init__(self, *, primitive: str, shape: tuple[int, ...]) -> None:
        self.primitive, self.shape = primitive, shape
        super().__init__(
            f"{primitive} needs an intermediate array of shape {list(shape)}, but at most "
            f"{LIMITS.file} bytes are allowed. Use smaller shapes"
        )


def check_traced_sizes(traced: ClosedJaxpr) -> None:
    """Refuse what XLA has no numbers for; takes time in proportion to the traced program.

    Args:
        traced: What jax is about to lower.

    Raises:
        OversizedResult: If a result is larger than the file of a PEF may be, a size of 0 left out.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def table(n):
        ...     return (jnp.zeros((n, 1)) - jnp.zeros((1, n))).sum()
        >>> check_traced_sizes(jax.make_jaxpr(table, static_argnums=0)(2**10))
        >>> check_traced_sizes(jax.make_jaxpr(table, static_argnums=0)(2**30))
        Traceback (most recent call last):
        emulator.plans.traced.OversizedResult: sub needs an intermediate array of \
shape [1073741824, 1073741824], but at most 281474976710656 bytes are allowed. Use smaller shapes
    """
    pending: list[Any] = [traced.jaxpr]
    ids = {id(traced.jaxpr)}
    while pending:
        for equation in pending.pop().eqns:
            for result in equation.outvars:
                _check(equation.primitive.name, result.aval)
            for inner in functions_in(equation.params.values()):
                if id(inner) not in ids:
                    ids.add(id(inner))
                    pending.append(inner)


def _check(primitive: str, form: Any) -> None:
    shape = getattr(form, "shape", ())
    if shape and math.prod([n for n in shape if n]) * form.dtype.itemsize > LIMITS.file:
        raise OversizedResult(primitive=primitive, shape=tuple(shape))


def functions_in(parameters: Iterable[Any]) -> Iterator[Any]:
    """The programs inside of an operation's parameters: loops, branches, functions."""
    for parameter in parameters:
        if isinstance(parameter, ClosedJaxpr):
            yield parameter.jaxpr
        elif isinstance(parameter, Jaxpr):
            yield parameter
        elif isinstance(parameter, (tuple, list)):
            yield from functions_in(cast("Sequence[Any]", parameter))


_FLOPS_PER_SECOND = 1e11
"""More than a laptop's core has: what is estimated with it is less than what is measured."""

_BYTES_PER_SECOND = 4e10
"""The same, where most elementwise operations are fused with their neighbours."""

_VIEWS = frozenset({"reshape", "transpose", "slice", "squeeze", "broadcast_in_dim"})


def variables(atoms: Iterable[Any]) -> list[Any]:
    """What of some operands or results is a value and no literal."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def bytes_of(atoms: Iterable[Any]) -> int:
    """Bytes of values, those of literals left out."""
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables(atoms))


def is_source(eqn: Any) -> bool:
    """Whether an operation reads no value."""
    return not variables(eqn.invars)


def is_view(eqn: Any) -> bool:
    """Whether an operation only names elements of what it reads."""
    return eqn.primitive.name in _VIEWS and len(eqn.invars) == 1


def compiled_operations(eqn: Any, known: dict[int, int]) -> int:
    """How many operations XLA is given for one: with all of the functions it calls.

    Args:
        eqn: The operation.
        known: Counts of functions by their identity, which grow.
    """
    inner = sum(_operations(function, known) for function in functions_in(eqn.params.values()))
    return inner or 1


def _operations(function: Any, known: dict[int, int]) -> int:
    count = known.get(id(function))
    if count is None:
        count = known[id(function)] = sum(compiled_operations(e, known) for e in function.eqns)
    return count


def seconds_of(eqns: Iterable[Any]) -> float:
    """A time that operations hardly stay below."""
    total = 0.0
    known: dict[int, float] = {}
    for eqn in eqns:
        if not is_view(eqn):
            moved = bytes_of({*variables(eqn.invars)}) + bytes_of(eqn.outvars)
            total += moved / _BYTES_PER_SECOND
        total += _multiplying(eqn, known)
    return total


def _multiplying(eqn: Any, known: dict[int, float]) -> float:
    """Time of an operation's products; ``known`` has that of functions by their identity."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod([eqn.invars[0].aval.shape[axis] for axis in contracted])
        return 2 * depth * math.prod(eqn.outvars[0].aval.shape) / _FLOPS_PER_SECOND
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        taps = math.prod(kernel) // max(kernel[params["dimension_numbers"].rhs_spec[0]], 1)
        return 2 * taps * math.prod(eqn.outvars[0].aval.shape) / _FLOPS_PER_SECOND
    inner = 0.0
    for function in functions_in(params.values()):
        if id(function) not in known:
            known[id(function)] = sum(_multiplying(e, known) for e in function.eqns)
        inner += known[id(function)]
    length = params.get("length", 1)
    return inner * (length if isinstance(length, int) else 1)


_PLAIN = frozenset({int, str, bool, float, type(None)})
"""Types of parameters that are compared as they are."""


class Forms:
    """Numbers of operations: two that differ in the values they read and make alone have the same.

    Functions that operations call are compared by what they compute; their names do not count.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Any, int]] = {}
        self._functions: dict[int, tuple[Any, int]] = {}
        self._literals: dict[int, tuple[Any, Hashable]] = {}

    def of(self, eqn: Any) -> int:
        """The number of an operation."""
        pair = self._known.get(id(eqn))
        if pair is None:  # the operation is kept, so that its identity stays its own
            pair = self._known[id(eqn)] = eqn, self._number(self._form(eqn))
        return pair[1]

    def literal(self, literal: Literal) -> Hashable:
        """What equal literals have in common."""
        pair = self._literals.get(id(literal))
        if pair is None:
            value = np.asarray(literal.val)
            key = (str(value.dtype), value.shape, value.tobytes(), _type(literal))
            pair = self._literals[id(literal)] = literal, key
        return pair[1]

    def _number(self, form: Hashable) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _form(self, eqn: Any) -> Hashable:
        is_call = eqn.primitive.name == "jit"
        return (
            eqn.primitive,
            tuple(
                [
                    (name, self._key(value))
                    for name, value in sorted(eqn.params.items())
                    if not (is_call and name == "name")
                ]
            ),
            tuple([_type(a) for a in eqn.invars]),
            tuple([_type(v) for v in eqn.outvars]),
            self._key(eqn.ctx),
        )

    def _key(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, ClosedJaxpr):
            return (self._function(value.jaxpr), tuple([id(c) for c in value.consts]))
        if isinstance(value, Jaxpr):
            return self._function(value)
        if isinstance(value, (tuple, list)):
            if all(type(part) in _PLAIN for part in cast("Sequence[Any]", value)):
                return tuple(cast("Sequence[Hashable]", value))
            return tuple([self._key(part) for part in cast("Sequence[Any]", value)])
        try:
            hash(value)
        except TypeError:
            return id(value)
        return value

    def _function(self, jaxpr: Jaxpr) -> int:
        pair = self._functions.get(id(jaxpr))
        if pair is None:
            places: dict[Any, int] = {}
            for v in (*jaxpr.constvars, *jaxpr.invars):
                places[v] = len(places)
            form: list[Hashable] = [len(jaxpr.constvars), *[_type(v) for v in places]]

            def place(atom: Any) -> Hashable:
                return self.literal(atom) if isinstance(atom, Literal) else places[atom]

            for eqn in jaxpr.eqns:
                form.append((self.of(eqn), tuple([place(a) for a in eqn.invars])))
                for v in eqn.outvars:
                    places[v] = len(places)
            form.append(tuple([place(a) for a in jaxpr.outvars]))
            pair = self._functions[id(jaxpr)] = jaxpr, self._number(tuple(form))
        return pair[1]


def _type(atom: Any) -> Hashable:
    aval = atom.aval
    return (aval.shape, aval.dtype, aval.weak_type) if hasattr(aval, "shape") else str(aval)


_FUNCTIONS = ("jaxpr", "call_jaxpr")
_COMMUTATIVE = frozenset({"add", "add_any", "mul", "and", "or", "xor"})
_CALLS = frozenset({"jit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPlan:
    """Operations over values.

    Args:
        eqns: The operations, each behind those it reads from.
        forms: The number of each one's form.
        sources: Operations that read nothing, by what they make, with the numbers of their forms.
        results: What the plan gives: values and literals.
    """

    eqns: list[Any]
    forms: list[int]
    sources: dict[Any, tuple[Any, int]]
    results: list[Any]


def flattened(jaxpr: Jaxpr, forms: Forms, *, whole: bool = False) -> FlatPlan:
    """Put the operations of functions in the place of their calls; keep one of equal operations.

    Calls that XLA does not inline stay. A transpose of a transpose becomes one, or none.

    Args:
        jaxpr: A traced plan without effects.
        forms: Numbers of operations.
        whole: Whether calls are opened, too, whose results only the caller of the plan reads, as
            those of an update.

    Returns:
        The operations.
    """
    read = {a for e in jaxpr.eqns for a in variables(e.outvars if whole else e.invars)}
    flattening = _Flattening(forms, read)
    names: dict[Any, Any] = {}
    flattening.walk(jaxpr.eqns, names, None)
    results = [a if isinstance(a, Literal) else names.get(a, a) for a in jaxpr.outvars]
    outputs = {*variables(results)}
    sources: dict[Any, tuple[Any, int]] = {}
    others: list[tuple[Any, int]] = []
    read = {*outputs}
    live: list[tuple[Any, int]] = []
    for eqn, form in zip(reversed(flattening.eqns), reversed(flattening.forms), strict=True):
        if not read.isdisjoint(eqn.outvars):
            read.update(variables(eqn.invars))
            live.append((eqn, form))
    for eqn, form in reversed(live):
        if is_source(eqn) and outputs.isdisjoint(eqn.outvars):
            sources.update(dict.fromkeys(eqn.outvars, (eqn, form)))
        else:
            others.append((eqn, form))
    return FlatPlan(
        eqns=[eqn for eqn, _ in others],
        forms=[form for _, form in others],
        sources=sources,
        results=results,
    )


class _Flattening:
    def __init__(self, forms: Forms, read: set[Any]) -> None:
        self.eqns: list[Any] = []
        self.forms: list[int] = []
        self._of, self._read = forms, read
        self._made: dict[Hashable, list[Any]] = {}
        self._transposed: dict[Any, tuple[tuple[int, ...], Any]] = {}

    def walk(self, eqns: Iterable[Any], names: dict[Any, Any], scope: Any) -> None:
        """Collect the operations of one function, and of the functions that it calls.

        Args:
            eqns: Its operations.
            names: The plan's value for each value of the function; this adds the results.
            scope: The name stack of the call in jax; None outside of any call.
        """
        for eqn in eqns:
            reads = [a if isinstance(a, Literal) else names.get(a, a) for a in eqn.invars]
            function = _function(eqn)
            place = eqn.source_info.name_stack
            stack = place if scope is None else scope + place
            if function is not None and (
                scope is not None or not self._read.isdisjoint(eqn.outvars)
            ):
                inner: dict[Any, Any] = dict(zip(function.invars, reads, strict=True))
                name = eqn.params.get("name", "")
                self.walk(function.eqns, inner, stack.extend(f"jit({name})") if name else stack)
                for v, a in zip(eqn.outvars, function.outvars, strict=True):
                    names[v] = a if isinstance(a, Literal) else inner.get(a, a)
                continue
            if eqn.primitive.name == "transpose":
                eqn, reads = self._as_one_transpose(eqn, reads)
                if eqn.params["permutation"] == tuple(range(reads[0].aval.ndim)):
                    names[eqn.outvars[0]] = reads[0]
                    continue
            form = self._of.of(eqn)
            keys = [self._of.literal(a) if isinstance(a, Literal) else a for a in reads]
            commutes = eqn.primitive.name in _COMMUTATIVE
            key = form, frozenset(keys) if commutes else tuple(keys)
            results = self._made.get(key)
            if results is None:
                results = self._made[key] = [Var(v.aval) for v in eqn.outvars]
                self.eqns.append(
                    eqn.replace(
                        invars=reads,
                        outvars=results,
                        source_info=eqn.source_info.replace(name_stack=stack),
                    )
                )
                self.forms.append(form)
                if eqn.primitive.name == "transpose":
                    self._transposed[results[0]] = eqn.params["permutation"], reads[0]
            names.update(zip(eqn.outvars, results, strict=True))

    def _as_one_transpose(self, eqn: Any, reads: list[Any]) -> tuple[Any, list[Any]]:
        """A transpose, and what it reads; of a transposed value it is that of the value."""
        (read,) = reads
        if isinstance(read, Literal) or read not in self._transposed:
            return eqn, reads
        first, value = self._transposed[read]
        second: tuple[int, ...] = eqn.params["permutation"]
        order = tuple([first[axis] for axis in second])
        return eqn.replace(params={"permutation": order}), [value]


def _function(eqn: Any) -> Jaxpr | None:
    """The function of a call that XLA inlines; None of all other operations."""
    if eqn.primitive.name not in _CALLS:
        return None
    marks: Mapping[str, str] = getattr(eqn.ctx, "xla_metadata", None) or {}
    places = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    if any(isinstance(place, Sharding) for place in places):  # the call says what lies where
        return None
    inner = next((eqn.params[name] for name in _FUNCTIONS if name in eqn.params), None)
    if marks.get("inlineable") == "false" or not isinstance(inner, ClosedJaxpr) or inner.consts:
        return None
    return inner.jaxpr
