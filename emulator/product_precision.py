"""Products of float32 in the whole of float32, on every platform.

By itself XLA leaves the precision of a product to the platform: a GPU then takes the factors as
TF32, with 10 bits after the point instead of 23. What is lowered here asks for all of them; XLA on
the CPU has no less. Who wants less says so to jax, by ``JAX_DEFAULT_MATMUL_PRECISION``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import jax

__all__ = ["full_products"]

_STATE = cast("Any", jax.default_matmul_precision)  # jax types it in part


@contextmanager
def full_products() -> Generator[None, None, None]:
    """While active, products that do not say how exact they are to be are traced as exact ones.

    It holds for this thread, and not where jax was told a precision already. As in
    :mod:`emulator.wide_types`, a signal's handler leaves no setting behind.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 2))
        >>> with full_products():
        ...     print("HIGHEST" in str(jax.make_jaxpr(jnp.matmul)(x, x)))
        True
    """
    before = _STATE.get_local()
    try:
        if _STATE.value is None:
            _STATE.set_local("highest")
        yield
    finally:
        _STATE.set_local(before)
