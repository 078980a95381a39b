"""Dropout inside composite ops such as attention and LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from emulator.ops import random
from pef_schema.errors import SambaError


class MissingSeed(SambaError):
    """An op with dropout was lowered without random state."""

    def __init__(self, *, op: str) -> None:
        self.op = op
        super().__init__(
            f"{op}: its dropout rate is not 0 but no seed was given; "
            "pass the keywords seed (uint32[2]) and stream (int)"
        )


def drop_factors(
    shape: Sequence[int],
    dtype: Any,
    rate: float | jax.Array,
    seed: jax.Array | None,
    stream: int,
    *,
    op: str,
) -> jax.Array | None:
    """Factors that dropout multiplies by: 0 with probability ``rate``, else ``1 / (1 - rate)``.

    Args:
        shape, dtype: Of the result.
        rate: A number, or a 0-d array that may be 0.
        seed: Random state, uint32[2]; not read if ``rate`` is the number 0.
        stream: Number of the random stream.
        op: Name for the error.

    Returns:
        The factors, or None if ``rate`` is the number 0.

    Raises:
        MissingSeed: If there is dropout and no seed.
    """
    if isinstance(rate, (int, float)) and rate == 0:
        return None
    if seed is None:
        raise MissingSeed(op=op)
    p = jax.lax.stop_gradient(jnp.asarray(rate, jnp.float32))
    kept = random.uniform(seed, stream, tuple(shape), jnp.float32) >= p
    scale = jnp.where(p < 1, 1 / jnp.where(p < 1, 1 - p, 1), 0)
    return jnp.where(kept, scale, 0).astype(dtype)
