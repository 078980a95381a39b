"""Euclid's algorithm and powers of integers, which wrap around at a type's bounds as torch's do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def greatest_common_divisor(x: jax.Array, other: jax.Array) -> jax.Array:
    """Greatest common divisor, as torch's ``calc_gcd`` has it.

    The minimum of a signed type is its own absolute value there: ``gcd(-128, 6)`` is ``-2`` or
    ``2`` in int8 as remainders have the sign of what is divided. (``jnp.gcd`` does not end there.)

    Args:
        x, other: Integers of one dtype and shape.

    Returns:
        Array of that dtype and shape.
    """

    def going_on(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(pair[0] != 0)

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = pair
        done = a == 0
        rest = lax.rem(b, jnp.where(done, jnp.ones((), a.dtype), a))
        return jnp.where(done, a, rest), jnp.where(done, b, a)

    # Every step's remainder is nearer to zero than its divisor, so the loop ends.
    return lax.while_loop(going_on, step, (jnp.abs(x), jnp.abs(other)))[1]


def least_common_multiple(x: jax.Array, other: jax.Array) -> jax.Array:
    """Least common multiple; wraps around where it does not fit, as torch's does.

    Args:
        x, other: Integers of one dtype and shape.

    Returns:
        Array of that dtype and shape.
    """
    divisor = greatest_common_divisor(x, other)
    # C computes in int at least: the absolute value is taken before 8 or 16 bits are cut off.
    wide = np.int32 if x.dtype.itemsize < 4 else x.dtype
    whole = lax.div(x, jnp.where(divisor == 0, jnp.ones((), x.dtype), divisor))
    product = jnp.abs(whole.astype(wide) * other.astype(wide)).astype(x.dtype)
    return jnp.where(divisor == 0, jnp.zeros((), x.dtype), product)


def power_of_integers(a: jax.Array, b: jax.Array) -> jax.Array:
    """Integer power; a negative exponent leaves only 1 and -1 alive."""
    sign = jnp.where(b % 2 == 0, 1, a)
    inverse = jnp.where(jnp.abs(a) == 1, sign, 0).astype(a.dtype)
    return jnp.where(b < 0, inverse, jnp.power(a, jnp.maximum(b, 0)))
