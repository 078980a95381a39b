"""What XLA:CPU makes of one traced operation: a kernel of its own, or a part of its readers'.

What it fuses is ``CanBeLoopFused`` in XLA's ``service/cpu/cpu_instruction_fusion.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from jax.extend.core import Literal

from emulator.plans.traced.sizes import functions_in

__all__ = [
    "Fusing",
    "fusing_of",
    "is_moving",
    "is_partial",
    "is_turning",
    "may_turn",
    "weight_of",
]

_HEAVY, _MIDDLE, _LIGHT = 16, 3, 1
"""Weights of an exponential, of a division or a choice between places, and of an addition."""

_COPYING = frozenset(
    {"convert_element_type", "bitcast_convert_type", "copy", "copy_p", "stop_gradient"}
)

_NAMING = frozenset(
    {
        *("slice", "rev", "transpose", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"),
        *("optimization_barrier", "split", "reduce_precision", "real", "imag"),
    }
)
"""Operations that compute nothing, besides those that copy: a kernel reads other places."""

_CUTTING = frozenset({"slice", "dynamic_slice", "gather", "split"})
"""Operations that read a part of what they are given."""

_CHOOSING = frozenset({"dynamic_slice", "dynamic_update_slice", "pad", "concatenate", "gather"})
"""Operations that compute nothing but where to read."""

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
        *("shift_left", "shift_right_logical", "shift_right_arithmetic", "floor", "ceil"),
        "integer_pow",
    }
)

_MIDDLE_ONES = frozenset({"div", "sqrt", "rsqrt", "rem", "dynamic_slice", "pad", "gather"})

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


def fusing_of(eqn: Any, makers: Mapping[Any, Any]) -> Fusing:
    """How XLA fuses an operation.

    Args:
        eqn: The operation.
        makers: What makes each value of its function.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> sample = jax.make_jaxpr(lambda x: (jnp.cos(x), x.sum(), x @ x))(jnp.ones((2, 2)))
        >>> [fusing_of(eqn, {}).name for eqn in sample.jaxpr.eqns]
        ['READER', 'ROOT', 'ALONE']
    """
    name = eqn.primitive.name
    if len(eqn.outvars) != 1:
        return Fusing.READER if name == "split" else Fusing.ALONE
    if name in _REDUCING:
        return Fusing.READER if _is_reshape(eqn) else Fusing.ROOT
    return Fusing.ALONE if _is_alone(eqn, makers) else Fusing.READER


def weight_of(eqn: Any) -> int:
    """What an element of an operation's result costs: how many additions take as long."""
    name = eqn.primitive.name
    if name in _NAMING or name in _COPYING or (name in _REDUCING and _is_reshape(eqn)):
        return 0
    if name in _LIGHT_ONES:
        return _LIGHT
    return _MIDDLE if name in _MIDDLE_ONES or name == "concatenate" else _HEAVY


def is_moving(eqn: Any, atom: Any) -> bool:
    """Whether an operation reads an operand at other places than the one that it makes."""
    name = eqn.primitive.name
    if name in _REDUCING or name in _CHOOSING or name in _NAMING:
        return True
    return bool(atom.aval.shape != eqn.outvars[0].aval.shape)


def is_partial(eqn: Any) -> bool:
    """Whether an operation reads no more of an array than it makes."""
    return eqn.primitive.name in _CUTTING


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
    is_plain = axes is not None and not eqn.primitive.name.startswith("arg")
    return is_plain and math.prod(shape[axis] for axis in axes) == 1


def _is_alone(eqn: Any, makers: Mapping[Any, Any]) -> bool:
    name = eqn.primitive.name
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
