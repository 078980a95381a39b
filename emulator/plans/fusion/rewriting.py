"""A traced plan in which values that are better made once are made once."""

from __future__ import annotations

from typing import Any, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

from emulator.kernels.unfused import in_memory
from emulator.plans.fusion.planner import made_in_memory
from emulator.plans.traced.flat import flattened
from emulator.plans.traced.forms import Forms

__all__ = ["planned"]

_HOLDING = {
    "jit": ("jaxpr",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
}
"""Parameters with functions that XLA compiles for themselves, by operation."""


def planned(traced: ClosedJaxpr) -> ClosedJaxpr:
    """Let no value be fused into several kernels that is better made once, in memory.

    Args:
        traced: What is to be compiled for the CPU.

    Returns:
        The same, with a call of nothing, which XLA does not fuse, behind each of these values, in
        loops and branches, too. Calls that XLA inlines are opened. Functions with effects stay.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def read_twice(x):
        ...     h = jnp.cos(x)
        ...     return h.sum(0), h.max(1)
        >>> found = planned(jax.make_jaxpr(read_twice)(jnp.ones((2, 2))))
        >>> [eqn.primitive.name for eqn in found.jaxpr.eqns]
        ['cos', 'jit', 'reduce_sum', 'reduce_max']
    """
    return _Rewriting().changed(traced)


class _Rewriting:
    def __init__(self) -> None:
        self._forms = Forms()
        self._functions: dict[int, tuple[ClosedJaxpr, ClosedJaxpr]] = {}
        self._calls: dict[Any, Any] = {}

    def changed(self, function: ClosedJaxpr) -> ClosedJaxpr:
        """A function with its values made once; the same one again for the same one."""
        found = self._functions.get(id(function))
        if found is None:
            jaxpr = function.jaxpr
            made = function
            if not jaxpr.effects:
                made = ClosedJaxpr(self._with_calls(jaxpr), function.consts)
            found = self._functions[id(function)] = function, made
        return found[1]

    def _with_calls(self, jaxpr: Jaxpr) -> Jaxpr:
        flat = flattened(jaxpr, self._forms, whole=True)
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
        return cast("Any", jaxpr).replace(eqns=eqns, outvars=results)

    def _with_functions(self, eqn: Any) -> Any:
        """An operation whose functions are changed, too."""
        params = dict(eqn.params)
        for name in _HOLDING.get(eqn.primitive.name, ()):
            held = params[name]
            params[name] = (
                self.changed(held)
                if isinstance(held, ClosedJaxpr)
                else tuple([self.changed(branch) for branch in held])
            )
        return eqn.replace(params=params)

    def _call(self, v: Any, once: Any, source: Any) -> Any:
        """The call of nothing that makes a value once; those of one type share a function."""
        found = self._calls.get(v.aval)
        if found is None:
            form = jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
            (found,) = cast("Any", jax).make_jaxpr(in_memory)(form).jaxpr.eqns
            self._calls[v.aval] = found
        return found.replace(invars=[v], outvars=[once], source_info=source)
