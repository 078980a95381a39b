"""What XLA:CPU makes of one traced operation: a kernel of its own, or a part of its readers'.

What it fuses is ``CanBeLoopFused`` in XLA's ``service/cpu/cpu_instruction_fusion.cc``.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Any

from emulator.plans.traced import functions_in

_HEAVY, _MIDDLE, _LIGHT = 16, 3, 1
"""Weights of an exponential, of a division or a choice between places, and of an addition."""

_FREE = frozenset(
    {
        *("convert_element_type", "bitcast_convert_type", "reduce_precision", "copy", "name"),
        *("slice", "split", "unstack", "rev", "transpose", "broadcast_in_dim", "tile"),
        *("reshape", "squeeze", "stop_gradient", "optimization_barrier", "sharding_constraint"),
        *("real", "imag", "complex", "conj"),
    }
)
"""Operations that compute nothing: a kernel reads other places, or other types."""

_CUTTING = frozenset({"slice", "split", "unstack", "dynamic_slice", "gather"})
"""Operations that read a part of what they are given."""

_SPLITTING = frozenset({"split", "unstack"})

_JOINING = frozenset({"concatenate", "stack"})
"""XLA fuses these into one reader; for two it makes them once."""

_REDUCING = frozenset(
    {
        *("reduce", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"),
        *("reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"),
    }
)

_LIGHT_ONES = frozenset(
    {
        *("add", "add_any", "sub", "mul", "neg", "abs", "sign", "max", "min", "clamp", "square"),
        *("eq", "ne", "ge", "gt", "le", "lt", "is_finite", "select_n", "and", "or", "not", "xor"),
        *("shift_left", "shift_right_logical", "shift_right_arithmetic"),
        *("floor", "ceil", "round", "population_count"),
    }
)

_MIDDLE_ONES = frozenset(
    {
        *("div", "rem", "sqrt", "rsqrt"),
        *("dynamic_slice", "dynamic_update_slice", "pad", "gather"),
    }
)

_ALONE = frozenset(
    {
        *("sort", "fft", "top_k", "iota", "ffi_call", "tridiagonal_solve"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        *("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
        *("rng_bit_generator", "rng_uniform", "threefry2x32", "random_bits", "random_gamma"),
        *("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta"),
        *("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve", "householder_product"),
    }
)
"""Operations that XLA fuses with nothing, beside those that hold functions."""

_MOST_JOINED = 8
"""Arrays up to which XLA:CPU fuses a concatenation."""


class Fusing(Enum):
    """How an operation and its neighbours become kernels.

    Attributes:
        READER: It is made in the kernels that read it.
        ROOT: It is the last of a kernel, which makes what it reads.
        ALONE: It reads memory and writes memory.
    """

    READER = auto()
    ROOT = auto()
    ALONE = auto()


def fusing_of(eqn: Any) -> Fusing:
    """How XLA fuses an operation.

    Args:
        eqn: The operation.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> sample = jax.make_jaxpr(lambda x: (jnp.cos(x), x.sum(), x @ x))(jnp.ones((2, 2)))
        >>> [fusing_of(eqn).name for eqn in sample.jaxpr.eqns]
        ['READER', 'ROOT', 'ALONE']
    """
    name = eqn.primitive.name
    if len(eqn.outvars) != 1:
        return Fusing.READER if name in _SPLITTING else Fusing.ALONE
    if name in _REDUCING:
        return Fusing.READER if _is_reshape(eqn) else Fusing.ROOT
    return Fusing.ALONE if _is_alone(eqn) else Fusing.READER


def weight_of(eqn: Any) -> int:
    """What an element of an operation's result costs: how many additions take as long."""
    name = eqn.primitive.name
    if name in _FREE or (name in _REDUCING and _is_reshape(eqn)):
        return 0
    if name == "integer_pow":
        exponent = eqn.params["y"]
        return _MIDDLE * (exponent < 0) + 2 * abs(exponent).bit_length() - 2
    if name in _LIGHT_ONES or name in ("dot_general", "conv_general_dilated"):
        return _LIGHT  # a product that is fused is one of single elements
    return _MIDDLE if name in _MIDDLE_ONES else _HEAVY


def is_partial(eqn: Any) -> bool:
    """Whether an operation reads no more of an array than it makes."""
    return eqn.primitive.name in _CUTTING


def is_joining(eqn: Any) -> bool:
    """Whether an operation puts arrays into one."""
    return eqn.primitive.name in _JOINING


def is_turning(eqn: Any) -> bool:
    """Whether an operation makes rows of columns, so that one of both is read with gaps."""
    if eqn.primitive.name != "transpose":
        return False
    shape = eqn.invars[0].aval.shape
    order = [axis for axis in eqn.params["permutation"] if shape[axis] > 1]
    return bool(order) and order[-1] != max(order)


def may_turn(eqn: Any, operand: int) -> bool:
    """Whether XLA puts an operand into another order before it computes a product of it.

    Args:
        eqn: An operation that it fuses with nothing.
        operand: The operand's number.
    """
    name = eqn.primitive.name
    if name != "dot_general":
        return bool(name == "conv_general_dilated")
    contracted, batch = (tuple(axes[operand]) for axes in eqn.params["dimension_numbers"])
    first = len(batch) if operand else eqn.invars[0].aval.ndim - len(contracted)
    inner = tuple(range(first, first + len(contracted)))
    return batch != tuple(range(len(batch))) or contracted != inner


def _is_reshape(eqn: Any) -> bool:
    """Whether a reduction is one of single elements."""
    shape, axes = eqn.invars[0].aval.shape, eqn.params.get("axes")
    if axes is None or eqn.primitive.name.startswith("arg"):
        return False
    return math.prod(shape[axis] for axis in axes) == 1


def _is_alone(eqn: Any) -> bool:
    name = eqn.primitive.name
    if is_joining(eqn):
        return len(eqn.invars) > _MOST_JOINED
    if name == "dot_general":  # a sum of one product is a product
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted) > 1
    if name == "conv_general_dilated":
        shape = eqn.invars[1].aval.shape
        return math.prod(shape) > shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    if name.startswith("scatter"):  # one place is an update of a slice
        return math.prod(eqn.invars[1].aval.shape[:-1]) > 1
    if name in _ALONE:
        return True
    return any(True for _ in functions_in(eqn.params.values()))
