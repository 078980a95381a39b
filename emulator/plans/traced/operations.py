"""What is asked of a traced operation: its size, and its weight for the compiler and in time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from jax.extend.core import Literal

from emulator.plans.traced.sizes import functions_in

__all__ = ["bytes_of", "compiled_operations", "is_source", "is_view", "seconds_of", "variables"]

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
    found = known.get(id(function))
    if found is None:
        found = known[id(function)] = sum(compiled_operations(e, known) for e in function.eqns)
    return found


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
