"""torch's type promotion, widening of half types, and broadcasting, for lowerings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import compute_dtype, widen
from emulator.ops._gradient import with_gradient
from emulator.ops._reduction import reduce_sum
from emulator.ops._reshape import reshaped

DEFAULT_FLOAT = np.dtype(np.float32)
"""Dtype of the results that torch gives for integer tensors in float functions."""

DEFAULT_COMPLEX = np.dtype(np.complex64)
"""Dtype of complex scalars beside real tensors, except float64 ones."""

Operand = Any
"""An array or a python scalar."""

Shape = tuple[int, ...]


def is_float(dtype: Any) -> bool:
    """Whether a dtype is a floating one, bfloat16 included."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: Any) -> bool:
    """Whether a dtype is one of complex numbers."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_inexact(dtype: Any) -> bool:
    """Whether a dtype is a floating or a complex one: torch's functions of reals keep it."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def real_type(dtype: Any) -> np.dtype:
    """The dtype of a complex dtype's parts; any other dtype itself."""
    return np.empty(0, dtype).real.dtype if is_complex(dtype) else np.dtype(dtype)


def conjugate(x: jax.Array) -> jax.Array:
    """The conjugate of a complex array; a real one itself."""
    return lax.conj(x) if is_complex(x.dtype) else x


def adjoint(x: jax.Array) -> jax.Array:
    """Conjugated matrices with their axes swapped."""
    return conjugate(x.mT)


def is_number(x: Any) -> bool:
    """Whether an argument is a python scalar rather than an array."""
    return isinstance(x, (bool, int, float, complex))


def _combine(higher: np.dtype | None, lower: np.dtype | None) -> np.dtype | None:
    """Let a lower category widen a higher one only to another kind.

    Kinds are bool, int, float, complex, in this order.
    """
    if higher is None or lower is None:
        return lower if higher is None else higher
    if is_complex(higher):
        return higher
    if is_float(higher):
        if not is_complex(lower):
            return higher
        return np.dtype(jnp.promote_types(compute_dtype(higher), np.complex64))
    if higher == np.bool_ or is_inexact(lower):
        return np.dtype(jnp.promote_types(higher, lower))
    return higher


def result_type(*args: Any) -> np.dtype:
    """The dtype that torch computes an operation of these arguments in.

    Tensors with dimensions go before 0-d tensors, these before python scalars
    (see ``torch.result_type``).

    Args:
        args: Arrays and python scalars, at least one of either.

    Returns:
        The promoted dtype.

    Example:
        >>> str(result_type(jnp.ones(2, jnp.bfloat16), 2.5))
        'bfloat16'
        >>> str(result_type(jnp.ones(2, jnp.int32), 2.5))
        'float32'
    """
    tiers: list[np.dtype | None] = [None, None, None]
    for x in args:
        if isinstance(x, bool):
            tier, dtype = 2, np.dtype(np.bool_)
        elif isinstance(x, int):
            tier, dtype = 2, np.dtype(np.int64)
        elif isinstance(x, float):
            tier, dtype = 2, DEFAULT_FLOAT
        elif isinstance(x, complex):
            tier, dtype = 2, DEFAULT_COMPLEX
        else:
            tier, dtype = (0 if x.ndim else 1), np.dtype(x.dtype)
        old = tiers[tier]
        tiers[tier] = dtype if old is None else np.dtype(jnp.promote_types(old, dtype))
    result = _combine(tiers[0], _combine(tiers[1], tiers[2]))
    return DEFAULT_FLOAT if result is None else result


def constant(value: complex, dtype: Any) -> np.ndarray:
    """A python scalar as a 0-d constant of a dtype, wrapping as torch does."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is what torch has then, too
        return np.asarray(value).astype(dtype)


_BY_WAY_OF: Mapping[np.dtype, np.dtype] = MappingProxyType(
    {
        np.dtype(np.uint8): np.dtype(np.int64),
        np.dtype(np.int8): np.dtype(np.int32),
        np.dtype(np.int16): np.dtype(np.int32),
        np.dtype(np.int32): np.dtype(np.int32),
        np.dtype(np.int64): np.dtype(np.int64),
    }
)
"""Integers that torch makes of floats on x86, before it keeps their low bits."""


def converted(x: jax.Array, dtype: Any) -> jax.Array:
    """An array in another dtype; floats become integers as torch makes them on x86.

    Of complex numbers a real dtype keeps the real part. Of floats XLA gives 0 for NaN and the
    nearest bound for what is out of range. The processor gives the lowest integer of 32 or 64 bits
    for both, of which narrower types keep the low bits.

    Args:
        x: Any array.
        dtype: The dtype of the result.

    Example:
        >>> converted(jnp.asarray([-473.6, jnp.nan]), np.int8).tolist()
        [39, 0]
    """
    dtype = np.dtype(dtype)
    if is_complex(x.dtype) and not is_complex(dtype) and dtype != np.bool_:
        x = lax.real(x)
    if not is_float(x.dtype) or dtype not in _BY_WAY_OF:
        return x.astype(dtype)
    way = _BY_WAY_OF[dtype]
    x = widen(x)  # float16 does not hold the bounds
    least = float(np.iinfo(way).min)
    inside = (x >= least) & (x < -least)
    return jnp.where(inside, x.astype(way), np.iinfo(way).min).astype(dtype)


def cast(x: Any, dtype: Any) -> Any:
    """An array or a python scalar as an array (or 0-d constant) of a dtype."""
    return constant(x, dtype) if is_number(x) else converted(x, dtype)


def broadcast_to(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Broadcast, with a gradient that sums the way XLA:CPU does fast.

    Args:
        x: Any array.
        shape: Target shape.

    Returns:
        ``x`` broadcast to ``shape``.
    """
    shape = tuple(shape)
    old = tuple(x.shape)
    return x if old == shape else _spread(x, old, shape)


def _spread_backward(old: Shape, new: Shape, _: None, g: jax.Array) -> tuple[jax.Array]:
    lead = len(new) - len(old)
    axes = tuple(range(lead)) + tuple(
        lead + i for i, n in enumerate(old) if n == 1 and new[lead + i] != 1
    )
    return (reshaped(reduce_sum(g, axes), old),)


@with_gradient(_spread_backward, saves=lambda _y, *_: None, static=(1, 2))
def _spread(x: jax.Array, old: Shape, new: Shape) -> jax.Array:
    del old
    return jnp.broadcast_to(x, new)


def broadcast_all(*arrays: Any) -> list[jax.Array]:
    """Broadcast arrays and 0-d numpy constants to their common shape."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [
        lax.full(shape, x) if isinstance(x, np.ndarray) else broadcast_to(x, shape) for x in arrays
    ]


def elementwise(
    fn: Callable[..., jax.Array],
    *args: Any,
    to_float: bool = False,
    exact_scalars: bool = False,
) -> jax.Array:
    """Promote and broadcast arguments, compute, and round to the promoted dtype once.

    Half types are computed in float32, as torch's CPU kernels do.

    Args:
        fn: Function of arrays of one dtype.
        args: Arrays and python scalars.
        to_float: Turn integers into the default float type (``exp`` of an integer tensor).
        exact_scalars: Keep a python scalar in float32 beside half tensors
            (torch does in mul, div and lerp) instead of rounding it first.

    Returns:
        The result in the promoted dtype.
    """
    dtype = result_type(*args)
    if to_float and not is_inexact(dtype):
        dtype = DEFAULT_FLOAT
    wide = compute_dtype(dtype)
    arrays = []
    for x in args:
        if is_number(x):
            arrays.append(constant(x, wide if exact_scalars else dtype).astype(wide))
        else:
            arrays.append(x.astype(wide))
    return fn(*broadcast_all(*arrays)).astype(dtype)


def promoted(fn: Callable[..., jax.Array], *, to_float: bool = False) -> Callable[..., jax.Array]:
    """The lowering that :func:`elementwise` makes of a function."""

    def lower(*operands: Operand) -> jax.Array:
        return elementwise(fn, *operands, to_float=to_float)

    return lower


def compared(fn: Callable[..., jax.Array], *args: Any) -> jax.Array:
    """Promote and broadcast arguments to one dtype and apply a predicate.

    Args:
        fn: Function of arrays of one dtype that returns booleans.
        args: Arrays and python scalars.

    Returns:
        A boolean array.
    """
    dtype = result_type(*args)
    arrays = [constant(x, dtype) if is_number(x) else x.astype(dtype) for x in args]
    return fn(*broadcast_all(*arrays))
