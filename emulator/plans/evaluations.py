"""How often a fusion would compute one element of a value, if values with one reader are fused.

XLA's option for that (``emulator/plans/extra_options.py``) makes a value in memory if two kernels
read it. If one kernel does, at two places each, as ``roll(h) + h``, it is fused and computed twice;
in a chain of these, two to the power of its length times. Only without the option does XLA limit
that, so plans are looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from emulator.plans.traced_sizes import functions_in

__all__ = ["MOST_EVALUATIONS", "evaluations"]

MOST_EVALUATIONS = 16
"""Evaluations of one element up to which XLA may fuse values that have one reader: the sixteen
slices of a reduction in groups (``emulator/kernels/folding.py``)."""

_MOVING = frozenset(
    {
        *("slice", "dynamic_slice", "dynamic_update_slice", "pad", "concatenate", "rev"),
        *("gather", "transpose", "broadcast_in_dim", "reshape", "squeeze"),
        *("reduce", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"),
        *("reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin", "split"),
    }
)
"""Operations that XLA fuses, and that read other places than the one that they make."""

_COMPUTING_NOTHING = frozenset(
    {"slice", "rev", "transpose", "broadcast_in_dim", "reshape", "squeeze"}
)
"""Those of them that a fusion may have as often as it likes."""

_ALONE = frozenset(
    {
        *("sort", "fft", "top_k", "iota"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        *("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
        *("ffi_call", "rng_bit_generator", "threefry2x32"),
        *("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve", "householder_product"),
    }
)
"""Operations that XLA fuses with nothing, beside those that hold functions."""

_MOST_JOINED = 8
"""Arrays up to which XLA:CPU fuses a concatenation."""

_CALLS = frozenset({"jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2"})

_Places = Mapping[int, frozenset[int]]
"""Where an element is wanted: places by kernel, both numbered."""

_NOWHERE: _Places = {}


def evaluations(traced: ClosedJaxpr) -> int:
    """The most often that a kernel would compute an element of a value that it holds.

    Args:
        traced: What is compiled.

    Returns:
        That number; none above :data:`MOST_EVALUATIONS` is counted exactly.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def chain(x, steps):
        ...     for _ in range(steps):
        ...         x = jnp.roll(x, 1) + x
        ...     return x
        >>> x = jnp.ones(8)
        >>> plain = jax.make_jaxpr(lambda x: jnp.cos(x) + jnp.sin(x) @ x)(x)
        >>> evaluations(plain), evaluations(jax.make_jaxpr(chain, static_argnums=1)(x, 20)) > 16
        (1, True)
    """
    pending: list[Jaxpr] = [traced.jaxpr]
    seen = {id(traced.jaxpr)}
    most = 1
    while pending and most <= MOST_EVALUATIONS:
        walk = _Walk()
        jaxpr = pending.pop()
        walk.through(jaxpr, [walk.own_kernel() for _ in jaxpr.outvars])
        most = max(most, walk.most)
        for inner in walk.apart:
            if id(inner) not in seen:
                seen.add(id(inner))
                pending.append(inner)
    return most


class _Walk:
    """One function and those that it calls, from its results to its arguments.

    Attributes:
        most: The most places of one kernel where a value is wanted.
        apart: Functions that XLA compiles for themselves: those of loops and of calls.
    """

    def __init__(self) -> None:
        self.most = 1
        self.apart: list[Jaxpr] = []
        self._numbers = count()

    def own_kernel(self) -> _Places:
        """One place in a kernel of its own."""
        return {next(self._numbers): frozenset([0])}

    def through(self, jaxpr: Jaxpr, results: Sequence[_Places]) -> list[_Places]:
        """Where the arguments of a function are wanted.

        Args:
            jaxpr: The function.
            results: Where its results are.
        """
        wanted: dict[Any, _Places] = {}
        makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

        def want(atoms: Sequence[Any], places: Sequence[_Places]) -> None:
            for atom, more in zip(atoms, places, strict=True):
                if not isinstance(atom, Literal):
                    wanted[atom] = _joined(wanted.get(atom, _NOWHERE), more)

        want(jaxpr.outvars, results)
        for eqn in reversed(jaxpr.eqns):
            outs = [wanted.get(v, _NOWHERE) for v in eqn.outvars]
            if not any(outs):
                continue  # nobody reads it
            want(eqn.invars, self._read(eqn, outs, makers))
            if self.most > MOST_EVALUATIONS:
                break
        return [wanted.get(v, _NOWHERE) for v in jaxpr.invars]

    def _read(self, eqn: Any, outs: Sequence[_Places], makers: Mapping[Any, Any]) -> list[_Places]:
        """Where an operation wants what it reads."""
        name = eqn.primitive.name
        inner: list[Jaxpr] = list(functions_in(eqn.params.values()))
        if inner and _is_walked_through(eqn):
            return self.through(inner[0], outs)
        self.apart += inner
        if _is_alone(eqn, makers):
            alone = self.own_kernel()
            return [alone for _ in eqn.invars]
        if name == "optimization_barrier":  # it is gone before XLA fuses
            return list(outs)
        joined = _NOWHERE
        for places in outs:
            joined = _joined(joined, places)
        if len(joined) > 1:  # it is made in memory, since several kernels read it
            joined = self.own_kernel()
        if name not in _COMPUTING_NOTHING:
            self.most = max(self.most, *map(len, joined.values()))
        shape = eqn.outvars[0].aval.shape
        moved: list[_Places] = []
        for atom in eqn.invars:
            if shape and not atom.aval.shape:
                moved.append(self.own_kernel())  # XLA makes a number before it is spread
            elif name not in _MOVING and atom.aval.shape == shape:
                moved.append(joined)
            else:
                moved.append(self._moved(joined))
        return moved

    def _moved(self, places: _Places) -> _Places:
        return {
            kernel: frozenset([next(self._numbers) for _ in found])
            for kernel, found in places.items()
        }


def _joined(first: _Places, second: _Places) -> _Places:
    if len(first) > 1 or not second:  # of several kernels no more needs to be known
        return first
    if not first:
        return second
    return {
        kernel: first.get(kernel, frozenset()) | second.get(kernel, frozenset())
        for kernel in dict.fromkeys((*first, *second))
    }


def _is_walked_through(eqn: Any) -> bool:
    """Whether an operation is a function that XLA inlines."""
    name = eqn.primitive.name
    if name == "scan":
        return eqn.params["length"] == 1
    return name in _CALLS and not _is_apart(eqn)


def _is_alone(eqn: Any, makers: Mapping[Any, Any]) -> bool:
    """Whether XLA fuses an operation with nothing.

    Args:
        eqn: The operation.
        makers: What makes each value of its function.
    """
    name = eqn.primitive.name
    if name in _MOVING and name != "concatenate":
        return False
    shapes = [atom.aval.shape for atom in eqn.invars]
    if name == "concatenate":  # neighbouring slices of one array are that array again
        cuts = sum(_is_cut(makers.get(a)) for a in eqn.invars if not isinstance(a, Literal))
        return len(shapes) > _MOST_JOINED and cuts < 2
    if name == "dot_general":  # a sum of one product is a product
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return math.prod(shapes[0][axis] for axis in contracted) > 1
    if name == "conv_general_dilated":
        features = eqn.params["dimension_numbers"].rhs_spec[0]
        return math.prod(shapes[1]) > shapes[1][features]
    if name.startswith("scatter"):  # one place is an update of a slice
        return math.prod(shapes[1][:-1]) > 1
    return name in _ALONE or any(True for _ in functions_in(eqn.params.values()))


def _is_cut(eqn: Any) -> bool:
    return eqn is not None and eqn.primitive.name in ("slice", "split", "dynamic_slice")


def _is_apart(eqn: Any) -> bool:
    """Whether XLA is told not to inline a call."""
    marks: Mapping[str, str] = getattr(getattr(eqn, "ctx", None), "xla_metadata", None) or {}
    return marks.get("inlineable") == "false"
