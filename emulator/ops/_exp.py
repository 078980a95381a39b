"""The exponential, infinite where its argument is, whatever it is added to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["exp"]


@jax.custom_jvp
def exp(x: jax.Array) -> jax.Array:
    """``e ** x``.

    XLA's is a large finite number times a power of two, at infinity too. Added to a product, both
    become one fused operation that never rounds the first to infinity: ``exp(x) - t * x`` is then
    ``-inf`` at infinity, where it is NaN. A choice in between keeps them apart.

    Example:
        >>> x = jnp.asarray([0.0, jnp.inf])
        >>> jax.jit(lambda x, t: exp(x) - t * x)(x, jnp.asarray([1.0, 2.0])).tolist()
        [1.0, nan]
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.exp(x)  # integers too, as floats
    return jnp.where(x == jnp.inf, jnp.inf, jnp.exp(x))


@exp.defjvp
def _derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = exp(*primals)
    return y, tangents[0] * y
