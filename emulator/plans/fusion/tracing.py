"""Planned functions, as jax compiles them."""

from __future__ import annotations

from typing import Any, cast

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from emulator.plans.fusion.rewriting import planned

__all__ = ["jitted_as_planned", "shape_of", "trace_planned"]


def jitted_as_planned(function: ClosedJaxpr, **settings: Any) -> Any:
    """Plan a function for XLA:CPU.

    Args:
        function: A plan or a part of one.
        settings: Arguments of ``jax.jit``.

    Returns:
        A jitted function of arrays.
    """
    operations = cast("Any", jaxpr_as_fun)(planned(function))

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
