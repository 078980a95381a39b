"""jax's settings for what is traced, for a moment: 64-bit types, and products in full precision.

Programs have 64-bit types, and jax by itself has not. By itself XLA leaves the precision of a
product to the platform: a GPU then takes the factors as TF32, with 10 bits after the point instead
of 23. What is lowered here asks for all of them; XLA on the CPU has no less. Who wants less says so
to jax, by ``JAX_DEFAULT_MATMUL_PRECISION``.

A signal's handler may raise between any two bytecodes, also in jax's own context manager, which
then leaves its setting behind. What stands here does not.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import jax

_STATE = cast("Any", jax.enable_x64)  # jax types neither of these
SETTING = _STATE.get_local
"""The present setting of the thread."""
SET = _STATE.set_local
"""Gives the thread a setting."""


@contextmanager
def wide_types() -> Generator[None, None, None]:
    """While active, jax takes 64-bit types as they are.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> with wide_types():
        ...     print(jnp.asarray(np.zeros(1)).dtype)
        float64
    """
    before = SETTING()
    try:
        SET(True)
        yield
    finally:
        SET(before)


_PRECISION = cast("Any", jax.default_matmul_precision)  # jax types it in part


@contextmanager
def full_products() -> Generator[None, None, None]:
    """While active, products that do not say how exact they are to be are traced as exact ones.

    It holds for this thread, and not where jax was told a precision already.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 2))
        >>> with full_products():
        ...     print("HIGHEST" in str(jax.make_jaxpr(jnp.matmul)(x, x)))
        True
    """
    before = _PRECISION.get_local()
    try:
        if _PRECISION.value is None:
            _PRECISION.set_local("highest")
        yield
    finally:
        _PRECISION.set_local(before)
