"""A traced plan without the calls that XLA inlines, each value computed once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import Sharding

from emulator.plans.traced.forms import Forms
from emulator.plans.traced.operations import is_source, variables

__all__ = ["FlatPlan", "flattened"]

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
        whole: Whether calls are opened, too, whose results nobody reads but the caller of the plan,
            as an update's.

    Returns:
        The operations.
    """
    read = {a for e in jaxpr.eqns for a in variables(e.outvars if whole else e.invars)}
    flattening = _Flattening(forms, read)
    names: dict[Any, Any] = {}
    flattening.walk(jaxpr.eqns, names, None)
    results = [a if isinstance(a, Literal) else names.get(a, a) for a in jaxpr.outvars]
    given = {*variables(results)}
    sources: dict[Any, tuple[Any, int]] = {}
    others: list[tuple[Any, int]] = []
    read = {*given}
    live: list[tuple[Any, int]] = []
    for eqn, form in zip(reversed(flattening.eqns), reversed(flattening.forms), strict=True):
        if not read.isdisjoint(eqn.outvars):
            read.update(variables(eqn.invars))
            live.append((eqn, form))
    for eqn, form in reversed(live):
        if is_source(eqn) and given.isdisjoint(eqn.outvars):
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
        """Take the operations of one function.

        Args:
            eqns: Its operations.
            names: The values of the plan by those of the function, which grow.
            scope: Where the function is called, as jax names it.
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
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = [Var(v.aval) for v in eqn.outvars]
                self.eqns.append(
                    eqn.replace(
                        invars=reads,
                        outvars=made,
                        source_info=eqn.source_info.replace(name_stack=stack),
                    )
                )
                self.forms.append(form)
                if eqn.primitive.name == "transpose":
                    self._transposed[made[0]] = eqn.params["permutation"], reads[0]
            names.update(zip(eqn.outvars, made, strict=True))

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
    found = next((eqn.params[name] for name in _FUNCTIONS if name in eqn.params), None)
    if marks.get("inlineable") == "false" or not isinstance(found, ClosedJaxpr) or found.consts:
        return None
    return found.jaxpr
