"""When two traced operations may stand for each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

__all__ = ["Forms"]

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
        found = self._known.get(id(eqn))
        if found is None:  # the operation is kept, so that its identity stays its own
            found = self._known[id(eqn)] = eqn, self._number(self._form(eqn))
        return found[1]

    def literal(self, literal: Literal) -> Hashable:
        """What equal literals have in common."""
        found = self._literals.get(id(literal))
        if found is None:
            value = np.asarray(literal.val)
            key = (str(value.dtype), value.shape, value.tobytes(), _type(literal))
            found = self._literals[id(literal)] = literal, key
        return found[1]

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
        found = self._functions.get(id(jaxpr))
        if found is None:
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
            found = self._functions[id(jaxpr)] = jaxpr, self._number(tuple(form))
        return found[1]


def _type(atom: Any) -> Hashable:
    aval = atom.aval
    return (aval.shape, aval.dtype, aval.weak_type) if hasattr(aval, "shape") else str(aval)
