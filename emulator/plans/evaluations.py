"""How often a fusion would compute one element of a value, if values with one reader are fused.

XLA's option for that (``emulator/plans/extra_options.py``) makes a value in memory if two kernels
read it. If one kernel does, at two places each, as ``roll(h) + h``, it is fused and computed twice;
in a chain of these, two to the power of its length times. XLA watches that without the option
alone, so plans are looked at here.
"""

from __future__ import annotations

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
        *("gather", "transpose", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"),
        *("reduce", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"),
        *("reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin", "split"),
    }
)
"""Operations that XLA fuses, and that read other places than the one that they make."""

_COMPUTING_NOTHING = frozenset(
    {"slice", "rev", "transpose", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"}
)
"""Those of them that a fusion may have as often as it likes."""

_ALONE = frozenset(
    {
        *("dot_general", "conv_general_dilated", "sort", "fft", "top_k", "iota"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        *("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
        *("scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"),
        *("while", "scan", "cond", "ffi_call", "rng_bit_generator", "threefry2x32"),
        *("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve", "householder_product"),
    }
)
"""Operations that XLA fuses with nothing."""

_MOST_JOINED = 8
"""Arrays up to which XLA:CPU fuses a concatenation."""

_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})

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

        def want(atoms: Sequence[Any], places: Sequence[_Places]) -> None:
            for atom, more in zip(atoms, places, strict=True):
                if not isinstance(atom, Literal) and atom.aval.shape:
                    wanted[atom] = _joined(wanted.get(atom, _NOWHERE), more)

        want(jaxpr.outvars, results)
        for eqn in reversed(jaxpr.eqns):
            outs = [wanted.get(v, _NOWHERE) for v in eqn.outvars]
            if not any(outs):
                continue  # nobody reads it
            want(eqn.invars, self._read(eqn, outs))
            if self.most > MOST_EVALUATIONS:
                break
        return [wanted.get(v, _NOWHERE) for v in jaxpr.invars]

    def _read(self, eqn: Any, outs: Sequence[_Places]) -> list[_Places]:
        """Where an operation wants what it reads."""
        name = eqn.primitive.name
        inner: list[Jaxpr] = list(functions_in(eqn.params.values()))
        if inner and name in _CALLS and not _is_apart(eqn):
            return self.through(inner[0], outs)
        self.apart += inner
        joins_many = name == "concatenate" and len(eqn.invars) > _MOST_JOINED
        if inner or name in _ALONE or joins_many:
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
            same = name not in _MOVING and atom.aval.shape == shape
            moved.append(joined if same else self._moved(joined))
        return moved

    def _moved(self, places: _Places) -> _Places:
        return {
            kernel: frozenset([next(self._numbers) for _ in found])
            for kernel, found in places.items()
        }


def _joined(first: _Places, second: _Places) -> _Places:
    if not first or not second:
        return first or second
    return {
        kernel: first.get(kernel, frozenset()) | second.get(kernel, frozenset())
        for kernel in dict.fromkeys((*first, *second))
    }


def _is_apart(eqn: Any) -> bool:
    """Whether XLA is told not to inline a call."""
    marks: Mapping[str, str] = getattr(getattr(eqn, "ctx", None), "xla_metadata", None) or {}
    return marks.get("inlineable") == "false"
