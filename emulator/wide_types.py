"""jax with 64-bit types, for a moment: programs have them, and jax by itself has not.

A signal's handler may raise between any two bytecodes, also in jax's own context manager, which
then leaves its setting behind. What stands here does not.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import jax

__all__ = ["SET", "SETTING", "wide_types"]

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
