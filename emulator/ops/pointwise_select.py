"""Lowerings: pointwise choices between values (extremes, limits, masks)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.op_facts.facts import Fusing
from emulator.ops._gradient import with_gradient
from emulator.ops._promote import (
    broadcast_all,
    cast,
    elementwise,
    is_float,
    result_type,
)
from emulator.ops.registry import pointwise

Operand = Any
"""An array or a python scalar."""


@pointwise("aten.maximum.default", ranges=("cut",))
@pointwise("aten.max.other", fusing=Fusing.REDUCES, ranges=("cut",))
def maximum(x: jax.Array, other: jax.Array) -> jax.Array:
    """The larger of two; NaN wins; a tie shares the gradient."""
    return elementwise(partial(_extreme, True), x, other)


@pointwise("aten.minimum.default", ranges=("cut",))
@pointwise("aten.min.other", fusing=Fusing.REDUCES, ranges=("cut",))
def minimum(x: jax.Array, other: jax.Array) -> jax.Array:
    """The smaller of two; NaN wins; a tie shares the gradient."""
    return elementwise(partial(_extreme, False), x, other)


@pointwise("aten.fmax.default")
def fmax(x: jax.Array, other: jax.Array) -> jax.Array:
    """The larger of two; a number wins over NaN; a tie goes to the first."""
    return elementwise(lambda a, b: jnp.where((a >= b) | (b != b), a, b), x, other)


@pointwise("aten.fmin.default")
def fmin(x: jax.Array, other: jax.Array) -> jax.Array:
    """The smaller of two; a number wins over NaN; a tie goes to the first."""
    return elementwise(lambda a, b: jnp.where((a <= b) | (b != b), a, b), x, other)


@pointwise(
    *("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor"),
    ranges=("cut",),
)
def clamp(x: jax.Array, min: Operand = None, max: Operand = None) -> jax.Array:
    """Limit to ``[min, max]``; ``max`` wins where they cross; NaN passes.

    The gradient reaches ``x`` on the limits too, and a limit only where it binds.
    """
    if max is None:
        return elementwise(_at_least, x, min)
    if min is None:
        return elementwise(_at_most, x, max)
    return elementwise(_between, x, min, max)


@pointwise(*("aten.clamp_min.default", "aten.clamp_min.Tensor"), ranges=("cut",))
def clamp_min(x: jax.Array, min: Operand) -> jax.Array:
    """Limit from below."""
    return clamp(x, min=min)


@pointwise(*("aten.clamp_max.default", "aten.clamp_max.Tensor"), ranges=("cut",))
def clamp_max(x: jax.Array, max: Operand) -> jax.Array:
    """Limit from above."""
    return clamp(x, max=max)


@pointwise(
    *("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther"),
    "aten.where.Scalar",
    reads=(0,),
    complex=True,
    ranges=("some_of", 1, 2),
)
def where(condition: jax.Array, x: Operand, other: Operand) -> jax.Array:
    """``x`` where the condition holds, else ``other``."""
    dtype = result_type(x, other)
    mask, a, b = broadcast_all(condition, cast(x, dtype), cast(other, dtype))
    return jnp.where(mask.astype(bool), a, b)


@pointwise(
    *("aten.masked_fill.Scalar", "aten.masked_fill.Tensor"),
    reads=(1,),
    complex=True,
    ranges=("some_of", 0, 2),
)
def masked_fill(x: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    """``value``, in the dtype of ``x``, where the mask holds, else ``x``."""
    x, mask, fill = broadcast_all(x, mask, cast(value, x.dtype))
    return jnp.where(mask.astype(bool), fill, x)


def _extreme_backward(largest: bool, saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    worse, better = saved if largest else saved[::-1]
    shared = jnp.where(worse == better, g / 2, g)
    return jnp.where(worse < better, 0, shared), jnp.where(better < worse, 0, shared)


@with_gradient(_extreme_backward, static=(0,))
def _extreme(largest: bool, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.maximum(a, b) if largest else jnp.minimum(a, b)


def _between_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, low, high = saved
    return (
        jnp.where((x >= low) & (x <= high), g, 0),
        jnp.where((low < high) & (x < low), g, 0),
        jnp.where((high < low) | (x > high), g, 0),
    )


@with_gradient(_between_backward)
def _between(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return _at_most(_at_least(x, low), high)


def _at_least(x: jax.Array, low: jax.Array) -> jax.Array:
    if not is_float(x.dtype):
        return jnp.maximum(x, low)
    nan = lax.stop_gradient(x + low)  # neither comparison holds: one of the two is NaN
    return jnp.where(x >= low, x, jnp.where(x < low, low, nan))


def _at_most(x: jax.Array, high: jax.Array) -> jax.Array:
    if not is_float(x.dtype):
        return jnp.minimum(x, high)
    nan = lax.stop_gradient(x + high)
    return jnp.where(x <= high, x, jnp.where(x > high, high, nan))
