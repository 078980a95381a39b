"""An order of computations that XLA sees as a dependency of data."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax import lax


def after(array: jax.Array, others: Iterable[jax.Array]) -> jax.Array:
    """An array, bit for bit, that is not ready before others are.

    Args:
        array: The array, of a floating or complex type.
        others: Arrays of such types.

    Returns:
        The same values. XLA sees a dependency; the code it makes has none.

    Example:
        >>> import jax.numpy as jnp
        >>> float(after(jnp.float32(-0.0), [jnp.ones(3)]))
        -0.0
    """
    if jnp.iscomplexobj(array):
        others = tuple(others)
        return lax.complex(after(array.real, others), after(array.imag, others))
    word = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = lax.bitcast_convert_type(array, word)
    for other in others:
        if other.size:
            bits = bits | _zero(other).astype(word)
    return lax.bitcast_convert_type(bits, array.dtype)


def _zero(array: jax.Array) -> jax.Array:
    """A zero that XLA does not know to be one: it counts the leading zeros of an odd number."""
    array = array.real
    width = 8 * array.dtype.itemsize
    first = lax.slice(array, (0,) * array.ndim, (1,) * array.ndim).reshape(())
    word = jnp.dtype(f"uint{width}")
    bits = lax.bitcast_convert_type(first, word)
    return lax.shift_right_logical(lax.clz(bits | word.type(1)), word.type(width.bit_length() - 1))
